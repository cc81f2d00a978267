import math

import torch
import torch.nn as nn

torch.manual_seed(0)


class MHAEinsum(nn.Module):
    def __init__(self, d_in, d_out, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_out // num_heads
        self.W_query = nn.Parameter(torch.randn(d_out, d_in))
        self.W_key = nn.Parameter(torch.randn(d_out, d_in))
        self.W_value = nn.Parameter(torch.randn(d_out, d_in))
        self.out_proj = nn.Linear(d_out, d_out)

    def project(self, x, W):
        return torch.einsum('bnd,di->bni', x, W)

    def forward(self, x):
        b, n, _ = x.shape
        Q, K, V = (self.project(x, W) for W in (self.W_query, self.W_key, self.W_value))
        Q, K, V = (t.view(b, n, self.num_heads, self.head_dim).transpose(1, 2) for t in (Q, K, V))
        scores = torch.einsum('bhnd,bhmd->bhnm', Q, K) / math.sqrt(self.head_dim)
        context = torch.einsum('bhnm,bhmd->bhnd', scores.softmax(-1), V)
        return self.out_proj(context.transpose(1, 2).reshape(b, n, -1))


embed_dim = 8
x = torch.randn(2, 5, embed_dim)
mha = MHAEinsum(d_in=embed_dim, d_out=2 * embed_dim, num_heads=4)
Q = mha.project(x, mha.W_query)
out = mha(x)
