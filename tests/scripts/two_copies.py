import copy

import torch
from torch import nn

torch.manual_seed(0)


def train(model, lr, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(steps):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(lr, step, repr(loss.item()))


first = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
second = copy.deepcopy(first)
train(first, 0.1, 5)
train(second, 0.01, 3)
