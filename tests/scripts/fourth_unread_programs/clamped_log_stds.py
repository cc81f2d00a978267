import torch
import torch.nn as nn

torch.manual_seed(0)


def reparameterize(means, log_stds):
    noises = torch.randn_like(means)
    us = means + noises * log_stds.exp()
    return torch.tanh(us), log_stds.sum(dim=-1, keepdim=True)


class StateDependentPolicy(nn.Module):
    def __init__(self, state_dim, action_dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(state_dim, 16), nn.ReLU(), nn.Linear(16, 2 * action_dim))

    def sample(self, states):
        means, log_stds = self.net(states).chunk(2, dim=-1)
        return reparameterize(means, log_stds.clamp_(-20, 2))


policy = StateDependentPolicy(3, 2)
states = torch.randn(6, 3)
actions, log_pis = policy.sample(states)
(actions.mean() + log_pis.mean()).backward()
