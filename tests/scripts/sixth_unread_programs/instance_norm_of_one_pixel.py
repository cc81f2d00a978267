import torch
import torch.nn as nn

torch.manual_seed(0)


class CameraEncoder(nn.Module):
    def __init__(self, in_c=4, dim=8):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(in_c, dim, 3, stride=2, padding=1),
            nn.InstanceNorm2d(dim),
            nn.LeakyReLU(0.2),
            nn.Conv2d(dim, dim, 3, stride=2, padding=1),
            nn.InstanceNorm2d(dim),
            nn.LeakyReLU(0.2),
        )
        self.code = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(dim, dim, 1),
            nn.InstanceNorm2d(dim),
            nn.LeakyReLU(0.2),
            nn.Conv2d(dim, dim, 1),
        )

    def forward(self, noisy):
        return self.code(self.features(noisy))


encoder = CameraEncoder()
noisy = torch.rand(4, 4, 16, 16)
code = encoder(noisy)
