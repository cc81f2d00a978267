import torch
import torch.nn as nn

torch.manual_seed(0)


class UpConv(nn.Module):
    def __init__(self, in_channels, out_channels, kernel, padding=0, flag=True):
        super(UpConv, self).__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, padding=padding)
        self.gn = nn.GroupNorm(8, out_channels)
        self.gelu = nn.GELU()
        self.up = nn.UpsamplingBilinear2d(scale_factor=2)
        self.flag = flag

    def forward(self, x):
        x = self.conv(x)
        if self.flag:
            x = self.up(self.gelu(self.gn(x)))
        return x


class Counter(nn.Module):
    def __init__(self, proj_dims=16):
        super(Counter, self).__init__()
        self.decoder = nn.ModuleList([
            UpConv(proj_dims + 1, proj_dims, 3, 1),
            UpConv(proj_dims, proj_dims, 3, 1),
            UpConv(proj_dims, 1, 1, flag=False),
        ])

    def forward(self, x):
        for up in self.decoder:
            x = up(x)
        return x


counter = Counter()
density = counter(torch.randn(1, 17, 6, 6))
