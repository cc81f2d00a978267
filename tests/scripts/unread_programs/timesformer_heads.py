import torch
import torch.nn as nn


class TimeSformer(nn.Module):
    def __init__(self, num_frames, embed_dims=24, num_heads=12):
        super().__init__()
        self.num_frames = num_frames
        self.attn = nn.MultiheadAttention(embed_dims, num_heads, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x, need_weights=False)[0]


torch.manual_seed(0)
timesformer = TimeSformer(8, embed_dims=32)
frames = torch.randn(2, 8, 32)
y = timesformer(frames)
