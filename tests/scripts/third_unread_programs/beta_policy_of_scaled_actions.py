import torch
import torch.nn as nn
from torch.distributions import Beta

torch.manual_seed(0)
actor = nn.Linear(4, 2)
obs = torch.randn(10, 4)
alpha, beta = nn.functional.softplus(actor(obs)).add(1).chunk(2, -1)
dist = Beta(alpha, beta)
raw = dist.sample()
action = raw * 4 - 2
log_prob = dist.log_prob(action)
loss = -(log_prob * torch.randn(10, 1)).mean()
loss.backward()
