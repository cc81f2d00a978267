import copy

import torch
import torch.nn as nn

torch.manual_seed(0)


class SeqSelfAttention(nn.Module):
    def __init__(self, units, input_dim):
        super().__init__()
        self.Wt = nn.Linear(input_dim, units)
        self.Wa = nn.Linear(units, 1)
        self.intensity = None
        self.attention = None

    def forward(self, inputs):
        q = self.Wt(inputs)
        h = torch.tanh(q.unsqueeze(2) + q.unsqueeze(1))
        e = self.Wa(h).squeeze(-1)
        self.intensity = e
        a = torch.softmax(e, dim=-1)
        self.attention = a
        return torch.bmm(a, inputs)


att = SeqSelfAttention(units=4, input_dim=4)
x = torch.rand(2, 5, 4)
att(x).sum().backward()
twin = copy.deepcopy(att)
