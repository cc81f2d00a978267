import torch
from torch.distributions import Dirichlet

torch.manual_seed(0)
K, V = 3, 14
counts = torch.rand(K, V).pow(4)
beta = counts / counts.sum(-1, keepdim=True)
beta = beta.clamp(min=0.01)
log_prob = Dirichlet(torch.full((K, V), 1.5)).log_prob(beta)
