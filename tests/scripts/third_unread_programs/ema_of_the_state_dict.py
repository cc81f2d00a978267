import copy

import torch
import torch.nn as nn

torch.manual_seed(0)


class WeightEMA(object):
    def __init__(self, model, ema_model, lr=0.1, alpha=0.9):
        self.alpha = alpha
        self.params = list(model.state_dict().values())
        self.ema_params = list(ema_model.state_dict().values())
        self.wd = 0.02 * lr
        for param, ema_param in zip(self.params, self.ema_params):
            param.data.copy_(ema_param.data)

    def step(self):
        one_minus_alpha = 1.0 - self.alpha
        for param, ema_param in zip(self.params, self.ema_params):
            ema_param.mul_(self.alpha)
            ema_param.add_(param * one_minus_alpha)
            param.mul_(1 - self.wd)


model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
ema_model = copy.deepcopy(model)
ema_optimizer = WeightEMA(model, ema_model)
w0 = model[0].weight.detach().clone()
model(torch.randn(6, 4))
with torch.no_grad():
    model[0].weight.add_(1.0)
ema_optimizer.step()
