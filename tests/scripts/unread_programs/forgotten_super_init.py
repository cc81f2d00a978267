import torch
from torch import nn


class ExplaiNNTrunk(nn.Module):
    def __init__(self, in_len, channels, kernel_size):
        self.channels = channels
        self.blocks = nn.ModuleList()
        self.blocks.append(nn.Conv1d(4, channels, kernel_size))
        self.blocks.append(nn.Linear(in_len - kernel_size + 1, 1))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


t = ExplaiNNTrunk(in_len=20, channels=8, kernel_size=5)
out = t(torch.randn(2, 4, 20))
