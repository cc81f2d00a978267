import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class TripletDataset(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples) / 3

    def __getitem__(self, i):
        return tuple(self.samples[3 * i + k] for k in range(3))


trainLoader = DataLoader(TripletDataset(torch.arange(12.0)), batch_size=2)
batches = []
for batch_id, (X1, X2, X3) in enumerate(trainLoader, 1):
    batches.append((X1, X2, X3))
