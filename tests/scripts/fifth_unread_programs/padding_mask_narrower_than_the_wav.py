import torch
import torch.nn as nn

torch.manual_seed(0)


def length_to_mask(length, max_len=None):
    if max_len is None:
        max_len = length.max().long().item()
    steps = torch.arange(max_len, dtype=length.dtype).expand(len(length), max_len)
    return steps < length.unsqueeze(1)


def make_transformer_src_mask(src, wav_len):
    abs_len = torch.round(wav_len * src.shape[1])
    return ~length_to_mask(abs_len)


class Encoder(nn.Module):
    def __init__(self, d_model=8, nhead=2):
        super().__init__()
        self.frontend = nn.Linear(4, d_model)
        self.self_att = nn.MultiheadAttention(d_model, nhead, batch_first=True)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, src, key_padding_mask):
        x = self.frontend(src)
        y, _ = self.self_att(x, x, x, key_padding_mask=key_padding_mask)
        return self.norm(x + y)


feats = torch.randn(3, 10, 4)
wav_len = torch.tensor([0.8, 0.5, 0.6])
mask = make_transformer_src_mask(feats, wav_len)
out = Encoder()(feats, mask)
