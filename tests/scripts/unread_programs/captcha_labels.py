import torch
from torch.utils.data import DataLoader, Dataset


class ClassificationDataset(Dataset):
    def __init__(self, targets):
        self.targets = targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, item):
        return {"images": torch.zeros(1, 6, 20), "targets": torch.tensor(self.targets[item], dtype=torch.long)}


targets = [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9]]
batch = next(iter(DataLoader(ClassificationDataset(targets), batch_size=2)))
