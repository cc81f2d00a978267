import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class DownBlock2d(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        self.pool = nn.AvgPool2d(kernel_size=(2, 2))

    def forward(self, x):
        return self.pool(F.relu(self.conv(x)))


class UpBlock2d(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)

    def forward(self, x):
        out = F.interpolate(x, scale_factor=2)
        return F.relu(self.conv(out))


class Encoder(nn.Module):
    def __init__(self, block_expansion, in_features, num_blocks):
        super().__init__()
        self.down_blocks = nn.ModuleList(
            [DownBlock2d(in_features if i == 0 else block_expansion, block_expansion) for i in range(num_blocks)]
        )

    def forward(self, x):
        outs = [x]
        for down_block in self.down_blocks:
            outs.append(down_block(outs[-1]))
        return outs


class Decoder(nn.Module):
    def __init__(self, block_expansion, num_blocks):
        super().__init__()
        self.up_blocks = nn.ModuleList(
            [UpBlock2d((1 if i == 0 else 2) * block_expansion, block_expansion) for i in range(num_blocks)]
        )

    def forward(self, x):
        out = x.pop()
        for up_block in self.up_blocks:
            out = up_block(out)
            skip = x.pop()
            out = torch.cat([out, skip], dim=1)
        return out


class KPDetector(nn.Module):
    def __init__(self, num_kp=5, block_expansion=4, num_blocks=3):
        super().__init__()
        self.encoder = Encoder(block_expansion, 3, num_blocks)
        self.decoder = Decoder(block_expansion, num_blocks)
        self.kp = nn.Conv2d(block_expansion + 3, num_kp, 3, padding=1)

    def forward(self, x):
        return self.kp(self.decoder(self.encoder(x)))


kp_detector = KPDetector(num_blocks=4)
out = kp_detector(torch.rand(1, 3, 28, 28))
