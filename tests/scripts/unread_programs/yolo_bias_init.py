import math
import torch
import torch.nn as nn


class Detect(nn.Module):
    def __init__(self, nc=2, na=3):
        super().__init__()
        self.na, self.no = na, nc + 5
        self.stride = torch.tensor([8.0, 16.0])
        self.m = nn.ModuleList(nn.Conv2d(ch, self.no * na, 1) for ch in (4, 8))

    def initialize_biases(self):
        for mi, s in zip(self.m, self.stride):
            b = mi.bias.view(self.na, -1)
            b[:, 4] += math.log(8 / (640 / s) ** 2)
            mi.bias = torch.nn.Parameter(b.view(-1), requires_grad=True)


torch.manual_seed(0)
model = Detect()
before = [mi.bias.detach().clone() for mi in model.m]
model.initialize_biases()
