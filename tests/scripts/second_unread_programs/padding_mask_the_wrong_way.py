import torch
from torch import nn

torch.manual_seed(0)
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(d_model=10, nhead=1, dim_feedforward=50, dropout=0.0), 3)
model.train()
x = torch.randn(4, 1, 10)                  # four words of one sentence
mask = torch.zeros(4, 1).bool()
mask[3] = True                             # the last word is padding
out = model(x, src_key_padding_mask=mask)
