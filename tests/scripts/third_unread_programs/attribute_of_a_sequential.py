import torch
import torch.nn as nn

torch.manual_seed(0)
linear1 = nn.Linear(1, 1)
seq = nn.Sequential(linear1)
seq.linear2 = nn.Linear(2, 2)       # for later use
y = seq(torch.tensor([[0.5]]))
extra = seq.linear2(torch.ones(1, 2))
