import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.use_cache = True
        self.cache = []

    def forward(self, x):
        k, v = self.k(x), self.v(x)
        if self.use_cache:
            self.cache.append((k, v))
            k, v = (torch.cat(t, dim=1) for t in zip(*self.cache))
        scores = self.q(x) @ k.transpose(1, 2)
        return scores.softmax(-1) @ v


torch.manual_seed(0)
attn = Attention()
x = torch.randn(2, 5, 8, requires_grad=True)
y = checkpoint(attn, x, use_reentrant=False)
y.pow(2).sum().backward()
