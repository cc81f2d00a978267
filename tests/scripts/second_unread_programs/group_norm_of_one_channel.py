import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class UpConv(nn.Module):
    def __init__(self, in_channels, out_channels, kernel, padding=0, flag=True):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, padding=padding)
        self.gn = nn.GroupNorm(8, out_channels)
        self.gelu = nn.GELU()
        self.flag = flag

    def forward(self, trg):
        trg = self.conv(trg)
        if self.flag:
            trg = F.interpolate(self.gelu(self.gn(trg)), scale_factor=2, mode="bilinear")
        return trg


proj_dims = 16
decoder = nn.ModuleList([
    UpConv(proj_dims + 1, proj_dims, 3, 1),
    UpConv(proj_dims, proj_dims, 3, 1),
    UpConv(proj_dims, 1, 1, flag=False),
])
x = torch.randn(2, 17, 6, 6)
for layer in decoder:
    x = layer(x)
