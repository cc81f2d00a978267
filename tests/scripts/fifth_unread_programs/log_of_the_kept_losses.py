import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
np.random.seed(0)
LEARNING_RATES = [0.01, 0.1]
X = torch.randn(20, 3)
y = X @ torch.tensor([[1.0], [-2.0], [0.5]])

losses, grad_norms = [], []
for lr in LEARNING_RATES:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses.append([])
    grad_norms.append([])
    for i in range(5):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(X), y)
        loss.backward()
        grad_norms[-1].append(float(model.weight.grad.norm()))
        optimizer.step()
        losses[-1].append(loss)

curves = []
for j, lr in enumerate(LEARNING_RATES):
    curves.append(np.log10(losses[j]))
