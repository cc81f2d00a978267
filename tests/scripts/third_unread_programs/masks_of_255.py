import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset as BaseDataset

torch.manual_seed(0)
np.random.seed(0)


def img_to_tensor(im):
    return torch.from_numpy(np.ascontiguousarray(im)).float()


class Dataset(BaseDataset):
    def __init__(self):
        self.images = np.random.rand(4, 3, 8, 8)
        self.masks = (np.random.rand(4, 1, 8, 8) > 0.6).astype(np.uint8) * 255

    def __getitem__(self, i):
        image, mask = self.images[i], self.masks[i]
        image = img_to_tensor(image)
        mask = img_to_tensor(mask)
        return image, mask

    def __len__(self):
        return len(self.images)


model = nn.Sequential(nn.Conv2d(3, 1, 3, padding=1), nn.Sigmoid())
loss_fn = nn.BCELoss()
dataset = Dataset()
losses = []
for x, y in DataLoader(dataset, batch_size=2):
    prediction = model(x)
    loss = loss_fn(prediction, y)
    loss.backward()
    losses.append(loss.item())
