import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(3, 1)
x = torch.randn(10, 3) * 3
target = (x.sum(1, keepdim=True) > 0).float()
bceloss = nn.BCELoss()
output = net(x)
loss = bceloss(output, target)
loss.backward()
