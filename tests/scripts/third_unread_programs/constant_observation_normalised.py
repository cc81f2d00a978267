import torch
import torch.nn as nn
from torch.distributions import Normal

torch.manual_seed(0)


class ActorCritic(nn.Module):
    def __init__(self, num_obs, num_actions):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(num_obs, 8), nn.ELU(), nn.Linear(8, num_actions))
        self.std = nn.Parameter(torch.ones(num_actions))

    def update_distribution(self, observations):
        mean = self.actor(observations)
        self.distribution = Normal(mean, mean * 0.0 + self.std)

    def act(self, observations):
        self.update_distribution(observations)
        return self.distribution.sample()


obs = torch.randn(16, 5)
obs[:, 2] = 0.3
obs_buf = (obs - obs.mean(0)) / obs.std(0)
policy = ActorCritic(5, 3)
actions = policy.act(obs_buf)
