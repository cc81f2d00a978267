import torch
import torch.nn as nn

torch.manual_seed(0)


class BasicBlock(nn.Module):
    def __init__(self, planes):
        super().__init__()
        self.conv1 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)

    def forward(self, x):
        return torch.relu(self.bn1(self.conv1(x)) + x)


class ResNet(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, stride=2, padding=3)
        self.layer1 = BasicBlock(8)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x):
        x = self.avgpool(self.layer1(self.conv1(x)))
        return self.fc(torch.flatten(x, 1))


model = ResNet().eval()
example = torch.randn(1, 3, 16, 16)
batch = torch.export.Dim('batch', max=10)
program = torch.export.export(model, (example,), dynamic_shapes={'x': {0: batch}}, strict=True)
