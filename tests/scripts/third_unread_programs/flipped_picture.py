import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

np.random.seed(0)


def flipud(images):
    return [image[::-1, ...] for image in images]


class Pictures(Dataset):
    def __init__(self):
        self.images = np.random.rand(4, 5, 6, 3).astype(np.float32)

    def __len__(self):
        return 4

    def __getitem__(self, i):
        image = flipud([self.images[i]])[0]
        return torch.from_numpy(image).permute(2, 0, 1)


pictures = Pictures()
batches = list(DataLoader(pictures, batch_size=2))
