import torch
from torch import nn

torch.manual_seed(0)
x = torch.linspace(-1, 1, 20)[:, None]
y = 3 * x + 0.5
model = nn.Linear(1, 1)
optimizer = torch.optim.LBFGS(model.parameters())
losses = []
for epoch in range(5):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
