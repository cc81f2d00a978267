import torch
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
m = torch.nn.Linear(4, 3)
x = torch.randn(10, 4)
z1 = checkpoint(m, x, use_reentrant=True)
loss = z1.pow(2).sum()
loss.backward()
