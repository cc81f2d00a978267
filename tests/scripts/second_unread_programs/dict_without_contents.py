import torch
from torch import nn
from typing import Dict

torch.manual_seed(0)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, features: Dict):
        return self.head(features["p3"])


model = Detector()
traced_module = torch.jit.script(model)
features = {"p3": torch.randn(3, 4)}
out = traced_module(features)
