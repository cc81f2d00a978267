import torch
from torch import nn

torch.manual_seed(0)
prompt = nn.Parameter(torch.randn(4))
optim = torch.optim.SGD(prompt, lr=0.1)
before = prompt.detach().clone()
(prompt ** 2).sum().backward()
optim.step()
