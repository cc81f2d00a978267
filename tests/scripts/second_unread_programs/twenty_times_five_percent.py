import torch
from torch.utils.data import random_split

torch.manual_seed(0)
whole_trainset = list(range(500))
trainsets = random_split(whole_trainset, [0.05] * 20)
