import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class UNetConvBlock(nn.Module):
    def __init__(self, in_size, out_size):
        super().__init__()
        self.conv = nn.Conv2d(in_size, out_size, 3, padding=1)
        self.relu = nn.LeakyReLU(0.2)
        self.downsample = nn.Conv2d(out_size, out_size, 4, stride=2, padding=1)

    def forward(self, x):
        out = self.relu(self.conv(x))
        return self.downsample(out), out


class UNetUpBlock(nn.Module):
    def __init__(self, in_size, out_size):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_size, out_size, 2, stride=2)
        self.conv = nn.Conv2d(out_size * 2, out_size, 3, padding=1)

    def forward(self, x, bridge):
        up = self.up(x)
        out = torch.cat([up, bridge], 1)
        return F.leaky_relu(self.conv(out), 0.2)


class HINet(nn.Module):
    def __init__(self, wf=4, depth=3):
        super().__init__()
        self.down = nn.ModuleList(UNetConvBlock(3 if i == 0 else wf, wf) for i in range(depth))
        self.up = nn.ModuleList(UNetUpBlock(wf, wf) for _ in range(depth))
        self.last = nn.Conv2d(wf, 3, 3, padding=1)

    def forward(self, x):
        blocks = []
        for down in self.down:
            x, skip = down(x)
            blocks.append(skip)
        for i, up in enumerate(self.up):
            x = up(x, blocks[-i - 1])
        return self.last(x)


net = HINet()
img = torch.rand(1, 3, 44, 40)
with torch.no_grad():
    out = net(img)
