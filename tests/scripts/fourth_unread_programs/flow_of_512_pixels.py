import torch
import torch.nn as nn


class GroupNorm32(nn.GroupNorm):
    def forward(self, x):
        return super().forward(x.float()).type(x.dtype)


def normalization(channels):
    return GroupNorm32(32, channels)


class UNetModel(nn.Module):
    def __init__(self, dim, num_channels, num_res_blocks):
        super().__init__()
        image_size = dim[-1]
        if image_size == 512:
            channel_mult = (0.5, 1, 1, 2)
        elif image_size == 256:
            channel_mult = (1, 1, 2, 2)
        else:
            channel_mult = (1, 2, 2)
        ch = int(channel_mult[0] * num_channels)
        self.input = nn.Conv2d(dim[0], ch, 3, padding=1)
        self.blocks = nn.ModuleList()
        for mult in channel_mult:
            for _ in range(num_res_blocks):
                self.blocks.append(normalization(ch))
                ch = int(mult * num_channels)


model = UNetModel(dim=(1, 512, 512), num_channels=32, num_res_blocks=1)
