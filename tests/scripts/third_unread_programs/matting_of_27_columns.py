import torch
import torch.nn as nn

torch.manual_seed(0)


class GFM(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder_3 = nn.Conv2d(3, 8, 3, padding=1)
        self.pool = nn.MaxPool2d(2, stride=2, ceil_mode=True)
        self.encoder_4 = nn.Conv2d(8, 8, 3, padding=1)
        self.decoder4_f = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Upsample(scale_factor=2, mode="bilinear"))
        self.decoder3_f = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x):
        e3 = self.encoder_3(x)
        e4 = self.encoder_4(self.pool(e3))
        d4_f = self.decoder4_f(e4)
        d3_f = self.decoder3_f(torch.cat((d4_f, e3), 1))
        return d3_f


model = GFM()
alpha = model(torch.randn(1, 3, 20, 27))
