import torch
import torch.nn as nn
from torch.optim.swa_utils import AveragedModel

torch.manual_seed(0)


class MultKAN(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.act_fun = nn.ModuleList(nn.Linear(a, b) for a, b in zip(width, width[1:]))
        self.acts = []

    def forward(self, x):
        self.acts = []
        for layer in self.act_fun:
            x = torch.nn.functional.silu(layer(x))
            self.acts.append(x)
        return x


model = MultKAN([2, 5, 1])
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
x = torch.randn(8, 2)
loss = model(x).pow(2).mean()
loss.backward()
optimizer.step()
swa_model = AveragedModel(model)
