import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Hourglass(nn.Module):
    def __init__(self, planes, depth):
        super(Hourglass, self).__init__()
        self.depth = depth
        self.upsample = nn.Upsample(scale_factor=2)
        self.hg = nn.ModuleList([nn.ModuleList([nn.Conv2d(planes, planes, 3, padding=1) for _ in range(4)]) for _ in range(depth)])

    def _hour_glass_forward(self, n, x):
        up1 = self.hg[n - 1][0](x)
        low1 = F.max_pool2d(x, 2, stride=2)
        low1 = self.hg[n - 1][1](low1)
        if n > 1:
            low2 = self._hour_glass_forward(n - 1, low1)
        else:
            low2 = self.hg[n - 1][3](low1)
        low3 = self.hg[n - 1][2](low2)
        up2 = self.upsample(low3)
        out = up1 + up2
        return out

    def forward(self, x):
        return self._hour_glass_forward(self.depth, x)


hourglass = Hourglass(8, 2)
heat = hourglass(torch.randn(1, 8, 20, 30))
