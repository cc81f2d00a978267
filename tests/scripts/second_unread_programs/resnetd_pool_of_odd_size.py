import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class ResNetDBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=2):
        super().__init__()
        self.convs = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1)
        self.downsample = nn.MaxPool2d(stride, stride=stride)
        self.project = nn.Conv2d(in_planes, planes, 1)

    def forward(self, x):
        residual = self.project(self.downsample(x))
        out = self.convs(x)
        out += residual
        return F.relu(out)


tree1 = ResNetDBlock(4, 8)
out = tree1(torch.randn(2, 4, 75, 75))
