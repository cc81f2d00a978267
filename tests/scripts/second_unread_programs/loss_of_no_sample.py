import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for tokens in (torch.full((3, 4), float("nan")), torch.randn(3, 4)):
    loss = torch.tensor(0.0, requires_grad=True)
    ctr = 0
    for stream in tokens:
        if stream.isnan().any():
            continue                       # no prediction for a stream with gaps
        loss = loss + model(stream).pow(2).sum()
        ctr += 1
    loss /= max(ctr, 1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
