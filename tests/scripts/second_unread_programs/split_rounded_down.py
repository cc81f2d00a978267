import torch
from torch.utils.data import TensorDataset, random_split

torch.manual_seed(0)
corpus = torch.randn(385, 4)
dataset = TensorDataset(corpus)
split = 0.1
train_set, val_set = random_split(dataset, [int(len(corpus) * (1 - split)), int(len(corpus) * split)])
