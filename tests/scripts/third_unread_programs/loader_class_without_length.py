import torch
from torch.utils import data

torch.manual_seed(0)


class DATA_LOADER(object):
    def __init__(self):
        self.features = torch.arange(14.0).view(7, 2)
        self.labels = torch.arange(7)
        self.ntrain = 7

    def __getitem__(self, index):
        return self.features[index], self.labels[index]


dataset = DATA_LOADER()
dataloader = data.DataLoader(dataset, batch_size=3, shuffle=True, drop_last=True)
seen = [label for x, y in dataloader for label in y.tolist()]
