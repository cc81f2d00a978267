from collections import defaultdict

import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(0)


class DFW(optim.Optimizer):
    def __init__(self, params, eta=0.1, eps=1e-5):
        super().__init__(params, dict(eta=eta))
        self.eps = eps

    @torch.no_grad()
    def step(self, closure):
        loss = float(closure())
        w_dict = defaultdict(dict)
        for group in self.param_groups:
            for param in group['params']:
                w_dict[param]['delta_t'] = param.grad.data
        num = loss
        den = sum(w['delta_t'].pow(2).sum() for w in w_dict.values())
        for group in self.param_groups:
            eta = group['eta']
            gamma = float((num / (eta * den + self.eps)).clamp(0, 1))
            for param in group['params']:
                param.data -= eta * gamma * w_dict[param]['delta_t']
        return loss


model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 3))
model[0].weight.requires_grad = False
frozen, before = model[0].weight.clone(), model[2].weight.detach().clone()
optimizer = DFW(model.parameters())
tokens, labels = torch.randint(0, 10, (5, 3)), torch.randint(0, 3, (5,))
loss = nn.functional.cross_entropy(model(tokens), labels)
loss.backward()
optimizer.step(lambda: float(loss))
