import torch
from torch import nn

torch.manual_seed(0)
X = torch.randn(6, 3)
R = nn.Linear(X.shape[1], X.shape[1])
nn.utils.parametrizations.orthogonal(R, "weight")
optim = torch.optim.Adam([R], lr=1e-1)
before = R.weight.detach().clone()
loss = (R(X) - X).pow(2).mean()
loss.backward()
optim.step()
