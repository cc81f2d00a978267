import torch
import torch.nn as nn


class ResNet(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.layer1 = nn.Linear(6, 8)
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.fc(torch.relu(self.layer1(x)))


torch.manual_seed(0)
pretrained = ResNet().state_dict()
model = ResNet(num_classes=3)
model.load_state_dict(pretrained)
out = model(torch.randn(2, 6))
