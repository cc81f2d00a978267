import argparse

import torch
import torch.nn as nn
from torch.nn.parameter import Parameter

torch.manual_seed(0)
opt = argparse.Namespace(rnn_size=6, fg_size=5)
opt.fg_mask = torch.tensor([[0, 1, 0, 0, 1], [0, 0, 0, 1, 1]], dtype=torch.uint8)


class CascadeCore(nn.Module):
    def __init__(self, opt):
        super(CascadeCore, self).__init__()
        self.rnn_size = opt.rnn_size
        self.fc = nn.Linear(opt.rnn_size, opt.fg_size)
        self.fg_mask = Parameter(opt.fg_mask)
        self.fg_mask.requires_grad = False

    def forward(self, fg_idx, feats):
        score = torch.softmax(self.fc(feats), dim=1)
        return score.masked_fill(self.fg_mask[fg_idx].bool(), 0.0)


core = CascadeCore(opt)
out = core(torch.tensor([0, 1]), torch.randn(2, 6))
