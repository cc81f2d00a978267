import torch
from torch.distributions import LogNormal, Normal

torch.manual_seed(0)

loc = torch.tensor(0.5, requires_grad=True)
log_scale = torch.tensor(-0.2, requires_grad=True)
q = Normal(torch.zeros(6), torch.ones(6))
z = q.rsample()
target = LogNormal(loc, log_scale.exp())
logp = target.log_prob(z)
loss = (q.log_prob(z) - logp).mean()
loss.backward()
