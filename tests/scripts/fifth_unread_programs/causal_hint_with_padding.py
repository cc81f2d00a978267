import torch
import torch.nn as nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, vocab, dim, heads):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, words):
        pad = words == 0
        x = self.norm(self.embed(words))
        y, _ = self.attn(x, x, x, key_padding_mask=pad, is_causal=True, need_weights=False)
        return x + y


words = torch.tensor([[4, 7, 2, 9, 3], [5, 6, 8, 0, 0]])
block = Block(10, 8, 2)
out = block(words)
