import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class WNLinear(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight_v = nn.Parameter(torch.randn(o, i))
        self.weight_g = nn.Parameter(torch.ones(o, 1))
        self.bias = nn.Parameter(torch.zeros(o))
        self.reset()

    def reset(self):
        self.weight = self.weight_g * self.weight_v / self.weight_v.norm(dim=1, keepdim=True)

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class MDEQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = WNLinear(5, 3)

    def forward(self, x):
        return self.fc(x)


model = MDEQ()
x = torch.randn(2, 5)
y = model(x)
ema = copy.deepcopy(model)
z = ema(x)
y.sum().backward()
