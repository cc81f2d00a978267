import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal

torch.manual_seed(0)


class Actor(nn.Module):
    def __init__(self, num_state):
        super(Actor, self).__init__()
        self.fc1 = nn.Linear(num_state, 8)
        self.mu_head = nn.Linear(8, 1)
        self.sigma_head = nn.Linear(8, 1)

    def forward(self, x):
        x = F.leaky_relu(self.fc1(x))
        mu = self.mu_head(x)
        sigma = self.sigma_head(x)
        return mu, sigma


actor_net = Actor(3)


def select_action(state):
    with torch.no_grad():
        mu, sigma = actor_net(state)
    dist = Normal(mu, sigma)
    action = dist.sample()
    action_log_prob = dist.log_prob(action)
    action = action.clamp(-2, 2)
    return action.item(), action_log_prob.item()


for step in range(20):
    state = torch.randn(1, 3)
    action, action_log_prob = select_action(state)
