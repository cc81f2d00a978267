import numpy as np
import torch as t
import torch.nn as nn
from PIL import Image

pixels = np.random.default_rng(1).integers(0, 256, (20, 20, 3), dtype="uint8")
lena = Image.fromarray(pixels)
input = t.from_numpy(np.array(lena)).float().div(255)
if input.dim() == 3:
    input = input.permute(2, 0, 1)
else:
    input = input.unsqueeze(0)
input = input.unsqueeze(0)
kernel = t.ones(3, 3) / -9
kernel[1][1] = 1
conv = nn.Conv2d(1, 1, (3, 3), 1, bias=False)
conv.weight.data = kernel.view(1, 1, 3, 3)
out = conv(input)
