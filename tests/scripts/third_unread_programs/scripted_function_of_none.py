import torch
from typing import Optional


@torch.jit.script
def masked_sum(x, mask):
    if mask is None:
        return x.sum()
    return (x * mask).sum()


x = torch.arange(4.0)
total = masked_sum(x, None)
part = masked_sum(x, torch.tensor([0.0, 1.0, 1.0, 0.0]))
