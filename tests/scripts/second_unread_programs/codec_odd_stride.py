import torch
from torch import nn
import math

torch.manual_seed(0)


class DecoderBlock(nn.Module):
    def __init__(self, dim, stride):
        super().__init__()
        self.up = nn.ConvTranspose1d(
            dim, 1, kernel_size=2 * stride, stride=stride, padding=math.ceil(stride / 2)
        )

    def forward(self, x):
        return self.up(x)


stride = 3
encode = nn.Conv1d(1, 4, kernel_size=2 * stride, stride=stride, padding=math.ceil(stride / 2))
decode = DecoderBlock(4, stride)
audio = torch.randn(2, 1, 48)
recon = decode(encode(audio))
loss = (recon - audio).abs().mean()
loss.backward()
