import torch
import torch.nn as nn

torch.manual_seed(0)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, d_model, n_head, batch_first=True):
        super().__init__()
        self.ln_1 = nn.LayerNorm(d_model)
        self.attn = nn.MultiheadAttention(d_model, n_head, batch_first=batch_first)

    def forward(self, x, attn_mask=None):
        y = self.ln_1(x)
        return x + self.attn(y, y, y, need_weights=False, attn_mask=attn_mask)[0]


class OpenClipText(nn.Module):
    def __init__(self, vocab=20, context_length=7, width=8):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, width)
        self.positional_embedding = nn.Parameter(torch.randn(context_length, width) * 0.01)
        self.resblocks = nn.ModuleList(ResidualAttentionBlock(width, 2) for _ in range(2))
        mask = torch.empty(context_length, context_length).fill_(float('-inf')).triu_(1)
        self.register_buffer('attn_mask', mask)
        self.ln_final = nn.LayerNorm(width)


class FrozenOpenCLIPEmbedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = OpenClipText()

    def forward(self, tokens):
        with torch.no_grad():
            x = self.model.token_embedding(tokens) + self.model.positional_embedding
            x = x.permute(1, 0, 2)  # NLD -> LND
            for r in self.model.resblocks:
                x = r(x, attn_mask=self.model.attn_mask)
            x = x.permute(1, 0, 2)  # LND -> NLD
            return self.model.ln_final(x)


embedder = FrozenOpenCLIPEmbedder()
tokens = torch.randint(0, 20, (4, 7))
z = embedder(tokens)
