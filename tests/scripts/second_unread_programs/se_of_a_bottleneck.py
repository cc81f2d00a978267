import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class SELayer(nn.Module):
    def __init__(self, channel, reduction=4):
        super(SELayer, self).__init__()
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(
            nn.Linear(channel, channel // reduction, bias=False),
            nn.ReLU(inplace=True),
            nn.Linear(channel // reduction, channel, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x):
        b, c, _, _ = x.size()
        y = self.avg_pool(x).view(b, c)
        y = self.fc(y).view(b, c, 1, 1)
        return x * y.expand_as(x)


class SEBottleneck(nn.Module):
    def __init__(self, inplanes, planes):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 1)
        self.conv3 = nn.Conv2d(planes, planes * 4, 1)
        self.se = SELayer(planes)

    def forward(self, x):
        out = F.relu(self.conv1(x))
        out = self.conv3(out)
        out = self.se(out)
        return F.relu(out + x)


block = SEBottleneck(64, 16)
out = block(torch.randn(2, 64, 5, 5))
