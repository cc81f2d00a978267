import torch
import torch.nn as nn

torch.manual_seed(0)


class OctaveConv(nn.Module):
    def __init__(self, in_channels, out_channels, alpha=0.5):
        super(OctaveConv, self).__init__()
        self.h2g_pool = nn.AvgPool2d(kernel_size=(2, 2), stride=2)
        self.upsample = torch.nn.Upsample(scale_factor=2, mode="nearest")
        low = int(alpha * out_channels)
        self.l2h = nn.Conv2d(int(alpha * in_channels), out_channels - low, 3, padding=1)
        self.h2h = nn.Conv2d(in_channels - int(alpha * in_channels), out_channels - low, 3, padding=1)

    def forward(self, x):
        X_h, X_l = x
        X_h2h = self.h2h(X_h)
        X_l2h = self.l2h(X_l)
        X_l2h = self.upsample(X_l2h)
        X_h = X_l2h + X_h2h
        return X_h


conv = OctaveConv(8, 16)
high = torch.randn(2, 4, 7, 7)
out = conv((high, conv.h2g_pool(high)))
