import torch
from torch import nn

torch.manual_seed(0)


def update_params(optim, network, loss, grad_clip=None):
    optim.zero_grad()
    loss.backward()
    optim.step()


class Agent:
    def __init__(self):
        self.Q1 = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.policy = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1), nn.Tanh())
        self.q1_optim = torch.optim.Adam(self.Q1.parameters(), lr=1e-2)
        self.policy_optim = torch.optim.Adam(self.policy.parameters(), lr=1e-2)

    def calc_critic_loss(self, states, actions, targets):
        return (self.Q1(torch.cat((states, actions), 1)) - targets).pow(2).mean()

    def calc_policy_loss(self, states):
        return -self.Q1(torch.cat((states, self.policy(states)), 1)).mean()

    def learn(self, states, actions, targets):
        q1_loss = self.calc_critic_loss(states, actions, targets)
        policy_loss = self.calc_policy_loss(states)
        update_params(self.q1_optim, self.Q1, q1_loss)
        update_params(self.policy_optim, self.policy, policy_loss)


agent = Agent()
first = [p.detach().clone() for p in (*agent.Q1.parameters(), *agent.policy.parameters())]
for _ in range(3):
    agent.learn(torch.randn(16, 3), torch.randn(16, 1), torch.randn(16, 1))
