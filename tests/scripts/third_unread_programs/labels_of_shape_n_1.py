import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(16, 7))
criterion = nn.CrossEntropyLoss(reduction="sum")
data = TensorDataset(torch.randn(16, 1, 4, 4), torch.randint(0, 7, (16, 1)))
losses = []
for images, labels in DataLoader(data, batch_size=8):
    y_pred = model(images)
    loss = criterion(y_pred, labels)
    loss.backward()
    losses.append(loss)
