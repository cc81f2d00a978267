import numpy as np
import torch

torch.manual_seed(0)
LEARNING_RATES = [0.01, 0.1]
losses = []
for lr in LEARNING_RATES:
    w = torch.zeros(3, requires_grad=True)
    x = torch.randn(20, 3)
    y = x @ torch.tensor([1.0, -2.0, 0.5])
    optimizer = torch.optim.SGD([w], lr=lr)
    loss_history = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = (x @ w - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        loss_history.append(loss)
    losses.append(loss_history)

curves = []
for j, lr in enumerate(LEARNING_RATES):
    curves.append(np.log10(losses[j]))
