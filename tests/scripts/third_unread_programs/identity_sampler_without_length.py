import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

torch.manual_seed(0)


class RandomIdentitySampler(Sampler):
    def __init__(self, pids, num_instances):
        self.pids = pids
        self.num_instances = num_instances

    def __iter__(self):
        for pid in torch.randperm(int(self.pids.max()) + 1).tolist():
            where = (self.pids == pid).nonzero().flatten()
            yield from where[: self.num_instances].tolist()


pids = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
train_data = TensorDataset(torch.arange(8.0), pids)
train_data_loader = DataLoader(train_data, batch_size=2, sampler=RandomIdentitySampler(pids, 2))
total = len(train_data_loader)
batches = [y.tolist() for x, y in train_data_loader]
