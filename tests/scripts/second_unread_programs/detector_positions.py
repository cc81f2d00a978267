import torch

torch.manual_seed(0)
x = torch.rand(4, requires_grad=True)
y = torch.rand(4, requires_grad=True)
start = x.detach().clone(), y.detach().clone()
source = torch.tensor([0.3, 0.7])
optimizer = torch.optim.SGD([x, y], lr=0.1)
positions = torch.stack((x, y), dim=1)
distances = (positions - source).pow(2).sum(dim=1).sqrt()
history = []
for epoch in range(5):
    optimizer.zero_grad()
    loss = (distances - 0.5).pow(2).mean()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
