import torch

torch.manual_seed(0)


class PPOAgent:
    def __init__(self, gamma=0.99):
        self.gamma = gamma

    def train(self, rewards, dones):
        discounted_rewards = []
        R = torch.zeros_like(rewards[0])
        for reward, done in zip(reversed(rewards), reversed(dones)):
            R = reward + self.gamma * R * (1 - done)
            discounted_rewards.insert(0, R)
        discounted_rewards_tensor = torch.tensor(discounted_rewards)
        return discounted_rewards_tensor


rewards = [torch.rand(3) for _ in range(4)]
dones = [torch.zeros(3) for _ in range(4)]
returns = PPOAgent().train(rewards, dones)
