import math

import torch
import torch.nn.functional as F

torch.manual_seed(0)


class CrossAttentionPatch:
    def __init__(self, mask):
        self.masks = [mask]

    def __call__(self, qs, h, w):
        mask = self.masks[0]
        mask_h = math.ceil(h / 2)
        mask_w = math.ceil(w / 2)
        mask_downsample = F.interpolate(mask.unsqueeze(1), size=(mask_h, mask_w), mode="bicubic").squeeze(1)
        return mask_downsample, qs * mask_downsample.reshape(1, -1, 1)


qs = torch.randn(1, 24, 3)
mask_downsample, out = CrossAttentionPatch(torch.rand(16, 24))(qs, 8, 12)
