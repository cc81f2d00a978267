import torch
from torch import nn

torch.manual_seed(0)


class CrossNetMix(nn.Module):
    def __init__(self, in_features, num_experts=2):
        super().__init__()
        self.gating = nn.ModuleList([nn.Linear(in_features, 1, bias=False) for _ in range(num_experts)])
        self.expert = nn.Linear(in_features, in_features)

    def forward(self, inputs):
        x_0 = inputs.unsqueeze(2)
        x_l = x_0
        gates = torch.stack([g(x_l.squeeze(2)) for g in self.gating], 1)
        x_l = x_0 * self.expert(x_l.squeeze(2)).unsqueeze(2) * gates.softmax(1).sum(1, keepdim=True) + x_l
        x_l = torch.squeeze(x_l)
        return x_l


cross, deep = CrossNetMix(4), nn.Linear(4, 3)
outs = []
for rows in torch.randn(5, 4).split(2):
    cross_out, deep_out = cross(rows), deep(rows)
    stack_out = torch.cat((cross_out, deep_out), dim=-1)
    outs.append(stack_out)
