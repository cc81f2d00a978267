import torch
from torch.utils.data import TensorDataset, random_split

torch.manual_seed(0)
dataset = TensorDataset(torch.arange(20))
train_p = 0.8
val_p = 0.1
train, val = random_split(dataset, [train_p, val_p])
