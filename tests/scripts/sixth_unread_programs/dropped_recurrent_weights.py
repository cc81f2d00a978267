import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class WeightDropout(nn.Module):
    "A module that warps another layer in which some weights will be replaced by 0 during training."

    def __init__(self, module, weight_p, layer_names=('weight_hh',)):
        super().__init__()
        self.module, self.weight_p, self.layer_names = module, weight_p, layer_names
        for layer in self.layer_names:
            w = getattr(self.module, layer)
            self.register_parameter(f'{layer}_raw', nn.Parameter(w.data.clone()))
        self._setweights()

    def _setweights(self):
        "Apply dropout to the raw weights."
        for layer in self.layer_names:
            self.module._parameters[layer] = F.dropout(getattr(self, f'{layer}_raw'), p=self.weight_p, training=self.training)

    def forward(self, x, state):
        self._setweights()
        return self.module(x, state)


model = WeightDropout(nn.LSTMCell(4, 6), 0.5)
before = model.weight_hh_raw.detach().clone()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
state = (torch.zeros(3, 6), torch.zeros(3, 6))
for t in range(4):
    state = model(torch.randn(3, 4), state)
out = state[0]
out.pow(2).mean().backward()
optimizer.step()
