import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class ConvNet(nn.Module):
    def __init__(self, num_classes=10):
        super(ConvNet, self).__init__()
        self.conv1 = nn.Conv2d(in_channels=3, out_channels=16, kernel_size=3)
        self.conv2 = nn.Conv2d(in_channels=16, out_channels=24, kernel_size=4)
        self.dropout = nn.Dropout2d(p=0.3)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, num_classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = self.dropout(x)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.dropout(x)
        x = x.view(x.size(0), 5 * 5 * 16)
        x = F.relu(self.fc1(x))
        return self.fc2(x)


net = ConvNet()
images = torch.randn(16, 3, 28, 28)
out = net(images)
