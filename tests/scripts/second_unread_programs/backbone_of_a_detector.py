import torch
from torch import nn

torch.manual_seed(0)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.bn1 = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn1(self.conv1(x))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = ResNet()
        self.head = nn.Linear(4, 10)

    def forward(self, x):
        return self.head(self.backbone(x).mean((2, 3)))


pretrained = Classifier().state_dict()
backbone = ResNet()
backbone.load_state_dict(pretrained)
