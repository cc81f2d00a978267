import torch
from torch import nn

torch.manual_seed(0)
models = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(2)]
optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in models]
for step in range(6):
    x = torch.randn(8, 4)
    for model, optimizer in zip(models, optimizers):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        print(step, repr(loss.item()))
