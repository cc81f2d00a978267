import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
max_epoch, batch_size = 2, 4
dataset = TensorDataset(torch.randn(18, 3), torch.randn(18, 1))
train_loader = DataLoader(dataset, batch_size=batch_size, shuffle=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
max_iter = max_epoch * (len(dataset) // batch_size)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=max_iter)
rates = []
for epoch in range(1, max_epoch + 1):
    for x, y in train_loader:
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
