import torch
import torch.nn as nn
import torch.nn.functional as F


class Down(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)

    def forward(self, x):
        return F.relu(self.conv(F.max_pool2d(x, 2)))


class Up(nn.Module):
    def __init__(self, cin, skip, cout):
        super().__init__()
        self.up = nn.ConvTranspose2d(cin, cout, 2, stride=2)
        self.conv = nn.Conv2d(cout + skip, cout, 3, padding=1)

    def forward(self, x, x_skip):
        x = self.up(x)
        x = torch.cat((x, x_skip), 1)
        return F.relu(self.conv(x))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inc = nn.Conv2d(3, 4, 3, padding=1)
        self.d1, self.d2 = Down(4, 8), Down(8, 16)
        self.u2, self.u1 = Up(16, 8, 8), Up(8, 4, 4)
        self.out = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        a = self.inc(x)
        b = self.d1(a)
        c = self.d2(b)
        return self.out(self.u1(self.u2(c, b), a))


unet = UNet()
even = unet(torch.randn(1, 3, 24, 24))
outputs = unet(torch.randn(1, 3, 22, 22))
