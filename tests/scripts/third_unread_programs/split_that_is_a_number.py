import torch
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)


class SplittedDataLoader:
    def __init__(self, dataset, train_batch_size, val_batch_size, split=(4, 1)):
        val_q = len(dataset) // sum(split) * split[1]
        train, val = random_split(dataset, [len(dataset) - val_q, val_q])
        self.train = DataLoader(train, batch_size=train_batch_size, shuffle=True)
        self.val = DataLoader(val, batch_size=val_batch_size)


dataset = TensorDataset(torch.arange(20.0))
num_workers = 0
dataloader = SplittedDataLoader(dataset, 4, 2, num_workers)
seen = torch.cat([b[0] for b in dataloader.train] + [b[0] for b in dataloader.val])
