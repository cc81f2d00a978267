import itertools
import torch

torch.manual_seed(0)
net = torch.nn.Linear(1, 1)
W = torch.zeros(1, 1, requires_grad=True)
optimizer = torch.optim.Adam(itertools.chain(*net.parameters(), *[W]))
