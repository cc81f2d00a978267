import torch
import torch.nn as nn

torch.manual_seed(0)


def Norm2d(in_channels):
    layer = nn.BatchNorm2d
    return layer(in_channels)


class HANet_Conv(nn.Module):
    def __init__(self, in_channel, r_factor=2):
        super().__init__()
        mid_1_channel = in_channel // r_factor
        self.rowpool = nn.AdaptiveAvgPool2d((16, 1))
        self.attention_first = nn.Sequential(
            nn.Conv1d(in_channels=in_channel, out_channels=mid_1_channel, kernel_size=1, bias=False),
            Norm2d(mid_1_channel),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        x1d = self.rowpool(x).squeeze(3)
        return self.attention_first(x1d)


net = HANet_Conv(6)
out = net(torch.randn(2, 6, 20, 8))
