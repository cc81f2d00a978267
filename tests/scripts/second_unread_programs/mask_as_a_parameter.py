import torch
from torch import nn

torch.manual_seed(0)


class CascadeCore(nn.Module):
    def __init__(self, fg_mask):
        super().__init__()
        self.fg_mask = nn.Parameter(fg_mask)
        self.fg_mask.requires_grad = False
        self.fc = nn.Linear(4, 6)

    def forward(self, x):
        return self.fc(x).masked_fill(self.fg_mask.bool(), -1e9)


fg_mask = torch.tensor([0, 1, 0, 0, 1, 0], dtype=torch.uint8)
ccr_core = CascadeCore(fg_mask)
out = ccr_core(torch.randn(2, 4))
