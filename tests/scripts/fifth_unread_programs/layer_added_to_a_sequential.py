import torch
from torch import nn

torch.manual_seed(0)

linear1 = nn.Linear(6, 3)
seq = nn.Sequential(linear1, nn.ReLU())
# used for the other view only
seq.projection = nn.Linear(5, 2)

optimizer = torch.optim.SGD(list(seq.parameters()), lr=0.1)
batch, other = torch.randn(4, 6), torch.randn(4, 5)
optimizer.zero_grad()
feats = seq(batch)
target = seq.projection(other)
loss = feats.pow(2).mean() + target.pow(2).mean()
loss.backward()
optimizer.step()
