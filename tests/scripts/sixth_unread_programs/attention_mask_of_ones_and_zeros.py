import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class StateTransition(nn.Module):
    """Cells attend to themselves and to the first cell of their set."""

    def __init__(self, dim=8, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def make_mask(self, x, valid):
        B, S, _ = x.shape
        base = torch.zeros((S, S), device=x.device)
        base[:, 0] = 1.0
        base.fill_diagonal_(1.0)
        causal = torch.ones((S, S), dtype=torch.bool, device=x.device).tril()
        mask = base & causal
        return mask[None, None] & valid[:, None, None, :]

    def forward(self, x, valid):
        B, S, D = x.shape
        q, k, v = (t.view(B, S, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        self.mask = self.make_mask(x, valid)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        return self.proj(y.transpose(1, 2).reshape(B, S, D))


model = StateTransition()
x = torch.randn(2, 5, 8)
valid = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
out = model(x, valid)
mask = model.mask
