import torch
import torch.nn as nn

torch.manual_seed(0)


def apply_complex(fr, fi, input, dtype=torch.complex64):
    return (fr(input.real) - fi(input.imag)).type(dtype) + 1j * (fr(input.imag) + fi(input.real)).type(dtype)


class ComplexConv2d(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv_r = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.conv_i = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, input):
        return apply_complex(self.conv_r, self.conv_i, input)


conv = ComplexConv2d(1, 4, 3)
data = torch.randn(2, 1, 8, 8)
x = conv(data)
