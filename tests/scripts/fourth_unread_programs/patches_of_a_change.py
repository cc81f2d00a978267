import torch
import torch.nn as nn

torch.manual_seed(0)


class SiamNet(nn.Module):
    def __init__(self, input_nbr):
        super(SiamNet, self).__init__()
        self.conv1 = nn.Conv2d(input_nbr, 8, kernel_size=3)
        self.bn1 = nn.BatchNorm2d(8)
        self.fc = nn.Sequential(
            nn.Linear(2 * 8 * 4, 16),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Linear(16, 2),
            nn.LogSoftmax(dim=1),
        )

    def branch(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        return nn.functional.max_pool2d(x, 3).view(x.size(0), -1)

    def forward(self, x1, x2):
        return self.fc(torch.cat((self.branch(x1), self.branch(x2)), 1))


net = SiamNet(3)
out = net(torch.randn(5, 3, 8, 8), torch.randn(5, 3, 8, 8))
