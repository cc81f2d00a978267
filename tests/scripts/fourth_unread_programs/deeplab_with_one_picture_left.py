import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class ASPP(nn.Module):
    def __init__(self, inplanes):
        super().__init__()
        self.aspp1 = nn.Sequential(nn.Conv2d(inplanes, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.global_avg_pool = nn.Sequential(
            nn.AdaptiveAvgPool2d((1, 1)),
            nn.Conv2d(inplanes, 4, 1, stride=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
        )

    def forward(self, x):
        x1 = self.aspp1(x)
        x5 = self.global_avg_pool(x)
        x5 = F.interpolate(x5, size=x1.size()[2:], mode='bilinear', align_corners=True)
        return torch.cat((x1, x5), dim=1)


class DeepLab(nn.Module):
    def __init__(self, num_classes=3):
        super().__init__()
        self.backbone = nn.Conv2d(3, 8, 3, padding=1)
        self.aspp = ASPP(8)
        self.decoder = nn.Conv2d(8, num_classes, 1)

    def forward(self, input):
        return self.decoder(self.aspp(self.backbone(input)))


train_loader = DataLoader(TensorDataset(torch.randn(9, 3, 8, 8), torch.randint(0, 3, (9, 8, 8))), batch_size=4)
model = DeepLab()
model.train()
steps = 0
for image, target in train_loader:
    output = model(image)
    loss = F.cross_entropy(output, target)
    loss.backward()
    steps += 1
