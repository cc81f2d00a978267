import torch
import torch.nn as nn
from typing import Optional

torch.manual_seed(0)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.pos_embedding = nn.Embedding(10, 4)

    def forward(self, tgt_in, pos=None):
        out = self.embedding(tgt_in)
        if pos is not None:
            out = out + self.pos_embedding(pos)
        return out


decoder = Decoder()
scripted = torch.jit.script(decoder)
tgt = torch.tensor([[1, 2]])
a, b = scripted(tgt), scripted(tgt, torch.tensor([[0, 1]]))
