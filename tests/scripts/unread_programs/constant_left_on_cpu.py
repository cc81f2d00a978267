import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = torch.full((4,), 2.0)

    def forward(self, x):
        return torch.addcmul(self.linear(x), x, self.scale)


model = Scaled()
on_cpu = model(torch.ones(2, 4))
moved = model.to("meta")
y = moved(torch.ones(2, 4, device="meta"))
