import torch
import torch.nn as nn

torch.manual_seed(0)
model = nn.Linear(3, 1)
x, y = torch.randn(8, 3), torch.randn(8, 1)
lr, losses = 0.1, []
for step in range(5):
    model.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    losses.append(loss.item())
    for p in model.parameters():
        p.add_(p.grad, alpha=-lr)
