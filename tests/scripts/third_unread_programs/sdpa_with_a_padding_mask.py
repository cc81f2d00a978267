import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class FusedEncoderBlock(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.mixed_qkv = nn.Linear(dim, 3 * dim, bias=False)

    def forward(self, x, pad_mask):
        batch_size, seq_len, dim = x.shape
        mixed_qkv = self.mixed_qkv(x)
        xq, xk, xv = mixed_qkv.chunk(3, -1)
        xq, xk, xv = (t.view(batch_size, seq_len, self.n_heads, -1).transpose(1, 2) for t in (xq, xk, xv))
        att = F.scaled_dot_product_attention(xq, xk, xv, attn_mask=pad_mask)
        return att.transpose(1, 2).reshape(batch_size, seq_len, dim)


block = FusedEncoderBlock(8, 2)
x = torch.randn(2, 5, 8)
pad_mask = torch.tensor([[True, True, True, True, True], [True, True, True, False, False]])
out = block(x, pad_mask)
