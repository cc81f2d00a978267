import sys

import torch

x = torch.randn(4, 4, requires_grad=True)
optimizer = torch.optim.SGD([x], lr=0.1)
for _ in range(3):
    loss = (x ** 2).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("done", x.shape)
sys.exit(3)
