import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
dataset = TensorDataset(torch.randn(6, 3), torch.randn(6, 1))
train_loader = DataLoader(dataset, batch_size=8, shuffle=True, drop_last=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=len(train_loader) * 3)
losses = []
for epoch in range(3):
    for x, y in train_loader:
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
