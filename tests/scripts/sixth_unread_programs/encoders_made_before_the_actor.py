import torch
import torch.nn as nn

torch.manual_seed(0)


class ActorCritic(nn.Module):
    def __init__(self, num_obs, num_actions, hidden=16):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(num_obs, hidden), nn.ELU(), nn.Linear(hidden, num_actions))

    def act(self, obs):
        return self.actor(obs)


class ActorCriticCNN(ActorCritic):
    def __init__(self, num_obs, num_actions, obs_groups, cnn_dim=4):
        self.cnns = self._make_cnns(obs_groups, cnn_dim)
        super().__init__(num_obs + len(obs_groups) * cnn_dim, num_actions)

    def _make_cnns(self, obs_groups, cnn_dim):
        cnns = nn.ModuleDict()
        for name, channels in obs_groups.items():
            cnns[name] = nn.Sequential(nn.Conv2d(channels, cnn_dim, 3), nn.ELU(),
                                       nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return cnns

    def act(self, obs, images):
        feats = [self.cnns[k](v) for k, v in images.items()]
        return self.actor(torch.cat([obs] + feats, dim=-1))


actor = ActorCriticCNN(num_obs=5, num_actions=2, obs_groups={'camera': 1})
action = actor.act(torch.randn(3, 5), {'camera': torch.rand(3, 1, 8, 8)})
