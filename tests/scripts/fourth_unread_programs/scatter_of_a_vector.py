import torch

res = torch.zeros(1, 20, dtype=torch.long)
I = torch.arange(3, 15).unsqueeze(0)
V = torch.arange(12)
res.scatter_(-1, I, V)
