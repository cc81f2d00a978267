import torch
import torch.nn as nn


class Fusefeature(nn.Module):
    def __init__(self, e=1e-4):
        super().__init__()
        self.e = e
        self.weight = nn.Parameter(torch.tensor([1.0, -0.5]), requires_grad=True)
        self.weight_relu = nn.ReLU(inplace=True)

    def forward(self, x):
        weight = self.weight_relu(self.weight)
        weight = weight / (torch.sum(weight, dim=0) + self.e)
        return weight[0] * x[0] + weight[1] * x[1]


fuse = Fusefeature()
x = torch.randn(2, 3)
y = fuse(x)
y.sum().backward()
