import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class DepthWiseConv1d(nn.Module):
    def __init__(self, chan_in, chan_out, kernel_size, padding):
        super().__init__()
        self.padding = padding
        self.conv = nn.Conv1d(chan_in, chan_out, kernel_size, groups=chan_in)

    def forward(self, x):
        x = F.pad(x, self.padding)
        return self.conv(x)


class ConformerConvModule(nn.Module):
    def __init__(self, dim, kernel_size):
        super().__init__()
        pad = kernel_size // 2
        self.norm = nn.LayerNorm(dim)
        self.depthwise = DepthWiseConv1d(dim, dim, kernel_size, (pad, pad))

    def forward(self, x):
        return self.depthwise(self.norm(x).transpose(1, 2)).transpose(1, 2)


layer = ConformerConvModule(dim=6, kernel_size=8)
x = torch.randn(1, 24, 6)
out = layer(x) + x
