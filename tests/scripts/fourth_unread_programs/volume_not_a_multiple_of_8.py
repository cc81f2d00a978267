import torch
import torch.nn as nn

torch.manual_seed(0)


class ConvolutionalBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv3d(cin, cout, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x))


class Decoder(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.blocks = nn.ModuleList([ConvolutionalBlock(2 * c + c, c) for c in channels])
        self.upsample = nn.Upsample(scale_factor=2)

    def forward(self, skip_connections, x):
        for skip, block in zip(reversed(skip_connections), self.blocks):
            x = self.upsample(x)
            x = torch.cat((skip, x), dim=1)
            x = block(x)
        return x


class UNet3D(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleList([ConvolutionalBlock(1, 2), ConvolutionalBlock(2, 4), ConvolutionalBlock(4, 8)])
        self.bottom = ConvolutionalBlock(8, 16)
        self.pool = nn.MaxPool3d(2)
        self.decoder = Decoder([8, 4, 2])

    def forward(self, x):
        skips = []
        for block in self.encoder:
            x = block(x)
            skips.append(x)
            x = self.pool(x)
        return self.decoder(skips, self.bottom(x))


model = UNet3D()
image = torch.rand(1, 1, 44, 16, 16)
out = model(image)
