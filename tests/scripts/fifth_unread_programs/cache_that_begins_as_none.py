from typing import List, Optional

import torch


class LastShape(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.jit.annotate(Optional[List[int]], None)

    def forward(self, x: torch.Tensor):
        shape: List[int] = x.size()
        self.last = shape
        return x.flatten(1)


scripted = torch.jit.script(LastShape())
y = scripted(torch.ones(2, 2, 3))
