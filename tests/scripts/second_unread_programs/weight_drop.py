import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class WeightDrop(nn.Module):
    def __init__(self, module, weights, dropout=0.5):
        super().__init__()
        self.module = module
        self.weights = weights
        self.dropout = dropout
        for name_w in self.weights:
            w = getattr(self.module, name_w)
            self.register_parameter(name_w + "_raw", nn.Parameter(w.data))

    def _setweights(self):
        for name_w in self.weights:
            raw_w = getattr(self, name_w + "_raw")
            w = F.dropout(raw_w, p=self.dropout, training=self.training)
            setattr(self.module, name_w, w)

    def forward(self, *args):
        self._setweights()
        return self.module.forward(*args)


lin = WeightDrop(nn.Linear(6, 4), ["weight"])
outs = []
for _ in range(2):
    out = lin(torch.randn(5, 6))
    out.sum().backward()
    outs.append(out)
