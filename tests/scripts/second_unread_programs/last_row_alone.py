import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class MyDataset(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, i):
        return torch.full((7,), float(i))


loader = DataLoader(MyDataset(), batch_size=2)
batchnorm = torch.nn.BatchNorm1d(num_features=7)
outs = [batchnorm(x) for x in loader]
