import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class ShuffleUnit(nn.Module):
    def __init__(self, in_channels, out_channels, groups=3):
        super(ShuffleUnit, self).__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels - in_channels       # the input is concatenated
        self.bottleneck_channels = self.out_channels // 4
        self.g_conv_1x1_compress = nn.Conv2d(in_channels, self.bottleneck_channels, 1, groups=groups)
        self.depthwise = nn.Conv2d(self.bottleneck_channels, self.bottleneck_channels, 3, stride=2, padding=1,
                                   groups=self.bottleneck_channels)
        self.g_conv_1x1_expand = nn.Conv2d(self.bottleneck_channels, self.out_channels, 1, groups=groups)

    def forward(self, x):
        residual = F.avg_pool2d(x, 3, stride=2, padding=1)
        out = F.relu(self.g_conv_1x1_compress(x))
        out = self.g_conv_1x1_expand(self.depthwise(out))
        return torch.cat((residual, out), 1)


unit = ShuffleUnit(24, 384, groups=8)
out = unit(torch.randn(2, 24, 8, 8))
