import torch
import torch.nn as nn

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(12, 1))
criterion = nn.BCEWithLogitsLoss()
data = torch.randn(16, 3, 2, 2)
target = torch.randint(0, 2, (16,)).float()
wanted = target
output = model(data)
loss = criterion(output, target)
loss.backward()
