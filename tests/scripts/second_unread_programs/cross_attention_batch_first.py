import torch
from torch import nn

torch.manual_seed(0)


class CrossAttention(nn.Module):
    def __init__(self, d_model=16, n_heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_heads)

    def forward(self, image, text):
        fused, _ = self.attn(query=image, key=text, value=text)
        return fused


layer = CrossAttention()
image, text = torch.randn(2, 5, 16), torch.randn(2, 9, 16)          # (batch, tokens, features)
fused = layer(image, text)
