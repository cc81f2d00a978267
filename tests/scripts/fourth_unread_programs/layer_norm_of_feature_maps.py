import torch
import torch.nn as nn

torch.manual_seed(0)


class AxialShiftedBlock(nn.Module):
    def __init__(self, dim, norm_layer=nn.LayerNorm):
        super().__init__()
        self.norm = norm_layer(dim)
        self.conv1 = nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        shortcut = x
        x = self.norm(x)
        x = self.conv1(x)
        return shortcut + x


x = torch.randn(2, 8, 5, 5)
net = AxialShiftedBlock(8, norm_layer=nn.LayerNorm)
out = net(x)
