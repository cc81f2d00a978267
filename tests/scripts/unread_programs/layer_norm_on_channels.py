import torch
import torch.nn as nn


class ConvModule(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        self.norm = nn.LayerNorm(cout)

    def forward(self, x):
        return self.norm(self.conv(x))


torch.manual_seed(0)
neck = ConvModule(4, 6)
x = torch.randn(2, 4, 5, 7)
y = neck(x)
