import torch
import torch.nn as nn

torch.manual_seed(0)


class Conv2dBatch(nn.Module):
    def __init__(self, cin, cout, kernel, act=True):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, kernel, padding=kernel // 2, bias=False)
        self.batchnorm = nn.BatchNorm2d(cout)
        self.activation = nn.Sigmoid() if act else nn.Identity()

    def forward(self, x):
        return self.activation(self.batchnorm(self.conv1(x)))


class ResPath(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.shortcut = Conv2dBatch(cin, cout, 1, act=False)
        self.conv = Conv2dBatch(cin, cout, 3)
        self.bn = nn.BatchNorm2d(cout)

    def forward(self, x):
        shortcut = self.shortcut(x)
        out = self.conv(x)
        out += shortcut
        return self.bn(torch.relu(out))


model = nn.Sequential(ResPath(3, 4), ResPath(4, 4), nn.Conv2d(4, 1, 1))
x = torch.rand(2, 3, 8, 8)
y = (torch.rand(2, 1, 8, 8) > 0.5).float()
out = model(x)
loss = nn.functional.binary_cross_entropy_with_logits(out, y)
loss.backward()
