import torch
import torch.nn as nn

torch.manual_seed(0)


def window_partition(x, split_size):
    return torch.split(x, split_size, dim=1)


class WindowPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        windows = window_partition(self.proj(x), 3)
        return torch.stack([w.mean(dim=1) for w in windows], dim=1)


net = WindowPool(4)
scripted = torch.jit.script(net)
x = torch.randn(2, 9, 4)
y = scripted(x)
