import math

import torch
import torch.nn as nn

torch.manual_seed(0)


class PositionalEncoder(nn.Module):
    def __init__(self, d_model, max_seq_len=20):
        super().__init__()
        self.d_model = d_model
        pe = torch.zeros(max_seq_len, d_model)
        for pos in range(max_seq_len):
            for i in range(0, d_model, 2):
                pe[pos, i] = math.sin(pos / (10000 ** ((2 * i) / d_model)))
                pe[pos, i + 1] = math.cos(pos / (10000 ** ((2 * (i + 1)) / d_model)))
        pe = pe.unsqueeze(0)
        self.register_buffer("pe", pe)

    def forward(self, x):
        x = x * math.sqrt(self.d_model)
        seq_len = x.size(1)
        pe = self.pe[:, :seq_len]
        x = x + pe
        return x


emb = nn.Embedding(50, 8)
pe = PositionalEncoder(8)
trg = torch.randint(0, 50, (3, 23))
out = pe(emb(trg))
