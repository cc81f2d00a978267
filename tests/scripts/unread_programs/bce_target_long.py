import torch
import torch.nn as nn

torch.manual_seed(0)
model = nn.Linear(5, 1)
criterion = nn.BCEWithLogitsLoss()
x = torch.randn(8, 5)
y = torch.tensor([[0], [1], [1], [0], [1], [0], [0], [1]])
y_pred = model(x)
loss = criterion(y_pred, y)
loss.backward()
