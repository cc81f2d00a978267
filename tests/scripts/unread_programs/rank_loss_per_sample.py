import torch
import torch.nn as nn
import torch.nn.functional as F


class RankLoss(nn.Module):
    def __init__(self, margin=0.05):
        super().__init__()
        self.margin = margin

    def forward(self, scores1, scores2, target):
        ps1 = F.softmax(scores1, dim=1).gather(1, target.view(-1, 1))
        ps2 = F.softmax(scores2, dim=1).gather(1, target.view(-1, 1))
        return torch.clamp(ps1 - ps2 + self.margin, min=0)


torch.manual_seed(0)
s1, s2 = torch.randn(6, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
label = torch.randint(0, 4, (6,))
RankLoss()(s1, s2, label).backward()
