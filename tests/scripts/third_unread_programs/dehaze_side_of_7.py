import torch
import torch.nn as nn

torch.manual_seed(0)


class SkipUpSample(nn.Module):
    def __init__(self, in_channels, s_factor):
        super(SkipUpSample, self).__init__()
        self.up = nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
                                nn.Conv2d(in_channels + s_factor, in_channels, 1, stride=1, padding=0, bias=False))

    def forward(self, x, y):
        x = self.up(x)
        x = x + y
        return x


class UNet(nn.Module):
    def __init__(self, n_feat=6, scale=2):
        super().__init__()
        self.enc = nn.Conv2d(3, n_feat, 3, padding=1)
        self.down = nn.Conv2d(n_feat, n_feat + scale, 3, stride=2, padding=1)
        self.skip = SkipUpSample(n_feat, scale)

    def forward(self, img):
        e1 = self.enc(img)
        return self.skip(self.down(e1), e1)


net = UNet()
out = net(torch.randn(1, 3, 7, 10))
