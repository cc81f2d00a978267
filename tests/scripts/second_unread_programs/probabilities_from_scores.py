import torch
from torch import nn

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6))
obs = torch.randn(10, 4)
action_dist_input_BD = actor(obs)
dist = torch.distributions.Categorical(action_dist_input_BD)
act = dist.sample()
loss = -dist.log_prob(act).mean()
loss.backward()
