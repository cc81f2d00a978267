import torch
import torch.nn as nn


class Encoder(nn.Module):
    def __init__(self, input_dim, hid_dim, max_length=10):
        super().__init__()
        self.tok_embedding = nn.Embedding(input_dim, hid_dim)
        self.pos_embedding = nn.Embedding(max_length, hid_dim)
        self.scale = hid_dim ** 0.5

    def forward(self, src):
        batch_size, src_len = src.shape
        pos = torch.arange(0, src_len).unsqueeze(0).repeat(batch_size, 1)
        return self.tok_embedding(src) * self.scale + self.pos_embedding(pos)


torch.manual_seed(0)
enc = Encoder(30, 8)
src = torch.randint(0, 30, (2, 12))
hidden = enc(src)
