import torch

torch.manual_seed(0)
target = torch.tensor([1.0, -2.0, 3.0])
x = torch.randn(3, requires_grad=True) * 0.1
optimizer = torch.optim.SGD([x], lr=0.1)
losses = []
for step in range(20):
    optimizer.zero_grad()
    loss = ((x - target) ** 2).sum()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
