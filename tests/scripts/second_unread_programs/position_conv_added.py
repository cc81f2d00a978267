import torch
from torch import nn

torch.manual_seed(0)


class TransformerEncoder(nn.Module):
    def __init__(self, dim=6):
        super().__init__()
        self.proj = nn.Linear(4, dim)
        self.pos_conv = nn.Sequential(nn.Conv1d(dim, dim, 3, padding=1), nn.GELU())
        self.layer_norm = nn.LayerNorm(dim)

    def extract_features(self, x):
        x = self.proj(x)
        x_conv = self.pos_conv(x.transpose(1, 2))
        x_conv = x_conv.transpose(1, 2)
        x += x_conv
        return self.layer_norm(x)


model = TransformerEncoder()
audio = torch.randn(2, 5, 4)
feats = model.extract_features(audio)
loss = feats.pow(3).sum()
loss.backward()
