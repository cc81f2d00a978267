import torch
import torch.nn as nn
import torch.nn.functional as f

torch.manual_seed(0)
POOL = 2


class DiscriminativeCell(nn.Module):
    def __init__(self, input_size, hidden_size, first=False):
        super().__init__()
        self.first = first
        if not first:
            self.from_bottom = nn.Conv2d(input_size, hidden_size, 3, padding=1)

    def forward(self, bottom_up):
        input_projection = self.first and bottom_up or f.relu(f.max_pool2d(self.from_bottom(bottom_up), POOL, POOL))
        return input_projection


bottom_up = torch.rand(1, 3, 8, 8)
cells = [DiscriminativeCell(3, 3, first=True), DiscriminativeCell(3, 4)]
out = [cell(bottom_up) for cell in cells]
