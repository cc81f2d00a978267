import torch
from torch import nn
import math

torch.manual_seed(0)


class ScaleDotProductAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, q, k, v, mask=None):
        d_tensor = q.size(-1)
        score = (q @ k.transpose(2, 3)) / math.sqrt(d_tensor)
        if mask is not None:
            score = score.masked_fill(mask == 0, -10000)
        score = self.softmax(score)
        return score @ v, score


q, k, v = torch.randn(3, 2, 4, 5, 6)
src_mask = torch.ones(2, 5, 5)
src_mask[1, :, 3:] = 0                 # the second sentence has 3 words
out, score = ScaleDotProductAttention()(q, k, v, src_mask)
