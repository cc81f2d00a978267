import copy

import torch
import torch.nn as nn

torch.manual_seed(0)


class NetWrapper(nn.Module):
    def __init__(self, net, layer=-2):
        super().__init__()
        self.net = net
        self.layer = layer
        self.hidden = None
        [*self.net.children()][self.layer].register_forward_hook(self._hook)

    def _hook(self, _, __, output):
        self.hidden = output

    def forward(self, x):
        _ = self.net(x)
        hidden = self.hidden
        return hidden


class BYOL(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.online_encoder = NetWrapper(net)
        self.predictor = nn.Linear(8, 8)
        self.target_encoder = None

    def forward(self, x):
        online = self.predictor(self.online_encoder(x))
        if self.target_encoder is None:
            self.target_encoder = copy.deepcopy(self.online_encoder)
        with torch.no_grad():
            target = self.target_encoder(x)
        return (online - target).pow(2).mean()


learner = BYOL(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
loss = learner(torch.randn(4, 6))
loss.backward()
