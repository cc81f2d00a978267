import math
import torch
import torch.nn as nn
from torch.nn import Parameter

torch.manual_seed(0)


class Variationalize(nn.Module):
    """A mean and a deviation for every weight of the model."""

    def __init__(self, model, zero_mean=False, init_rho=-3.0):
        super().__init__()
        self.model = model
        self.init_rho = init_rho
        self._variationalize_module()

    def _variationalize_module(self):
        self.names = []
        for name, p in self.model.named_parameters():
            self.register_parameter(name + '_mean', Parameter(p.data.clone()))
            self.register_parameter(name + '_rho', Parameter(
                torch.full_like(p, self.init_rho)))
            self.names.append(name)

    def prior_loss(self):
        own = dict(self.named_parameters(recurse=False))
        loss = 0.0
        for name, p in own.items():
            if name.endswith('_rho'):
                loss = loss - (1 + torch.exp(p)).log().log().sum()
            else:
                loss = loss + 0.5 * (p ** 2).sum() + 0.5 * math.log(2 * math.pi) * p.numel()
        return loss


model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
var_model = Variationalize(model)
loss = var_model.prior_loss()
loss.backward()
