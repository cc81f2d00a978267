import torch
from torch import nn

torch.manual_seed(0)
conv_layer = torch.nn.Conv2d(in_channels=3, out_channels=8, kernel_size=(7, 7), stride=(2, 2), dilation=(1, 1),
                             groups=1, bias=True, padding="same")
half = conv_layer(torch.randn(1, 3, 32, 32))
