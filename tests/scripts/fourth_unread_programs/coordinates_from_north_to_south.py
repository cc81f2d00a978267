import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

np.random.seed(0)


class SiteDataset(Dataset):
    def __init__(self):
        self.y = np.arange(4.0)
        self.sat = np.random.rand(2, 4, 4)

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return {"sat": self.sat[i], "y": self.y[::-1]}


for batch in DataLoader(SiteDataset(), batch_size=2):
    print({key: value.shape for key, value in batch.items()})
