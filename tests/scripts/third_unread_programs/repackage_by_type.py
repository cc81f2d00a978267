import torch
import torch.nn as nn
from torch.autograd import Variable

torch.manual_seed(0)


def repackage_hidden(h):
    if type(h) == Variable:
        return h.detach()
    else:
        return tuple(repackage_hidden(v) for v in h)


model = nn.LSTM(5, 6)
hidden = (torch.zeros(1, 2, 6), torch.zeros(1, 2, 6))
for i in range(2):
    hidden = repackage_hidden(hidden)
    out, hidden = model(torch.randn(3, 2, 5), hidden)
    model.zero_grad()
    out.pow(2).mean().backward()
