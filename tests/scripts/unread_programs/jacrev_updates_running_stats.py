import torch
from torch.func import jacrev

torch.manual_seed(0)
net = torch.nn.BatchNorm2d(3)
net.train()
t = torch.randn(2, 3, 4, 4)
jacobian = jacrev(net)(t)
