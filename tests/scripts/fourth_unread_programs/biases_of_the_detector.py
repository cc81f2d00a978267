import math

import torch
import torch.nn as nn

torch.manual_seed(0)


class Detect(nn.Module):
    def __init__(self, nc=80, ch=(4, 8)):
        super().__init__()
        self.nc = nc
        self.no = nc + 5
        self.na = 3
        self.stride = torch.tensor([8., 16.])
        self.m = nn.ModuleList(nn.Conv2d(x, self.no * self.na, 1) for x in ch)


class Model(nn.Module):
    def __init__(self, nc):
        super().__init__()
        self.model = Detect(nc)
        self._initialize_biases()

    def _initialize_biases(self, cf=None):
        m = self.model
        for mi, s in zip(m.m, m.stride):
            b = mi.bias.view(m.na, -1)
            b[:, 4] += math.log(8 / (640 / s) ** 2)
            b[:, 5:] += math.log(0.6 / (m.nc - 0.99))
            mi.bias = torch.nn.Parameter(b.view(-1), requires_grad=True)


model = Model(nc=3)
