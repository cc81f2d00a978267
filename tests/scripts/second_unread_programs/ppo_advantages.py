import torch
from torch import nn

torch.manual_seed(0)


class ValueNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.parameters(), lr=1e-2)

    def forward(self, state):
        return self.net(state)

    def SGD(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


policy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
policy_optimizer = torch.optim.SGD(policy.parameters(), lr=1e-2)
V = ValueNetwork()
surrogates = []
states = torch.randn(6, 3)
for t in range(5):
    advantage = 1.0 + 0.9 * V(states[t + 1]).detach() - V(states[t])
    V.SGD(advantage.pow(2).sum())
    log_prob = policy(states[t]).log_softmax(-1)[t % 2]
    ratio = (log_prob - log_prob.detach()).exp()
    surrogates.append(torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
loss = -torch.stack(surrogates).mean()
policy_optimizer.zero_grad()
loss.backward()
policy_optimizer.step()
