import torch
from torch import nn
from torch.func import jacrev, vmap

torch.manual_seed(0)
layers = nn.Sequential(nn.Conv2d(3, 3, kernel_size=3), nn.BatchNorm2d(3, track_running_stats=False))
x = torch.randn(2, 3, 6, 6)
j = vmap(jacrev(layers))(x)
