import torch
import torch.nn as nn
from copy import deepcopy


class Test(nn.Module):
    def __init__(self):
        super().__init__()
        self.con1 = nn.Conv2d(1, 2, 3)
        self.con2 = nn.Conv2d(2, 1, 3)

    def forward(self, x):
        return self.func(x)

    def func(self, x):
        self.exp = None
        x = self.con1(x)
        x = self.con2(x)
        self.exp = x
        return self.exp


torch.manual_seed(0)
model = Test()
input = torch.randn(1, 1, 16, 16)
output = model(input)
copy_model = deepcopy(model)
again = model(input)
