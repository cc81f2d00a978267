import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
net(torch.randn(5, 4)).sum().backward()
optimizer.step()
checkpoint = {"state_dict": net.state_dict(), "optimizer": optimizer.state_dict()}

# the second run, resumed
fine_tune = True
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
model.load_state_dict(checkpoint["state_dict"])
optimizer = torch.optim.SGD(model[2].parameters() if fine_tune else model.parameters(), lr=0.1, momentum=0.9)
optimizer.load_state_dict(checkpoint["optimizer"])
start = [p.detach().clone() for p in model.parameters()]
model(torch.randn(5, 4)).sum().backward()
optimizer.step()
