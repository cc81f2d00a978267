import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.Wqkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x, mask=None):
        B, S, E = x.shape
        q, k, v = self.Wqkv(x).split(E, dim=2)
        q, k, v = (t.view(B, S, self.n_heads, E // self.n_heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(y.transpose(1, 2).reshape(B, S, E))


class RecurrentDepth(nn.Module):
    def __init__(self, vocab=30, n_embd=8, steps=3):
        super().__init__()
        self.steps = steps
        self.wte = nn.Embedding(vocab, n_embd)
        self.core = CausalSelfAttention(n_embd, 2)
        self.norm = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab, bias=False)

    def forward(self, input_ids, attention_mask=None):
        mask = None
        if attention_mask is not None:
            mask = attention_mask[:, None, None, :]
        x = self.wte(input_ids)
        for _ in range(self.steps):
            x = self.norm(x + self.core(x, mask))
        return self.lm_head(x)


batch = {'input_ids': torch.tensor([[5, 7, 9, 0, 0], [3, 4, 8, 2, 6]]),
         'attention_mask': torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])}
model = RecurrentDepth()
input_ids = batch['input_ids']
logits = model(**batch)
