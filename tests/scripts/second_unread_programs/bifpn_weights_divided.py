import torch
from torch import nn

torch.manual_seed(0)


class BiFPNBlock(nn.Module):
    def __init__(self, feature_size=3, epsilon=0.0001):
        super(BiFPNBlock, self).__init__()
        self.epsilon = epsilon
        self.p3_td = nn.Conv2d(feature_size, feature_size, 3, padding=1)
        self.w1 = nn.Parameter(torch.rand(2, 4))
        self.w1_relu = nn.ReLU()

    def forward(self, p3_x, p4_x):
        w1 = self.w1_relu(self.w1)
        w1 /= torch.sum(w1, dim=0) + self.epsilon
        return self.p3_td(w1[0, 0] * p3_x + w1[1, 0] * p4_x)


block = BiFPNBlock()
p3_x, p4_x = torch.randn(2, 1, 3, 6, 6)
out = block(p3_x, p4_x)
loss = out.pow(2).sum()
loss.backward()
