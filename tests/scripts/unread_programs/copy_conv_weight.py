import torch
import torch.nn as nn

torch.manual_seed(0)
W = torch.randn(4, 3, 3, 3)
cconv = nn.Conv2d(3, 4, 3)
cconv.weight[:, :, :, :] = W[:, :, :, :]
out = cconv(torch.randn(1, 3, 5, 5))
out.sum().backward()
