import torch
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    sizes = [(54, 38), (79, 58), (54, 38), (60, 40)]

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.full((3, *self.sizes[i]), float(i))


loader = DataLoader(Pictures(), batch_size=4)
batches = list(loader)
