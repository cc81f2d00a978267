import torch
import torch.nn as nn
from torch.autograd import Function

torch.manual_seed(0)


class SignFunction(Function):
    """Variable Rate Image Compression with Recurrent Neural Networks"""

    @staticmethod
    def forward(ctx, input, is_training=True):
        if is_training:
            prob = input.new(input.size()).uniform_()
            x = input.clone()
            x[(1 - input) / 2 <= prob] = 1
            x[(1 - input) / 2 > prob] = -1
            return x
        return input.sign()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class Binarizer(nn.Module):
    def __init__(self, conv):
        super(Binarizer, self).__init__()
        self.conv = conv

    def forward(self, input):
        feat = torch.tanh(self.conv(input))
        feat.register_hook(grads.append)
        return SignFunction.apply(feat, self.training)


grads = []
conv = nn.Conv2d(3, 4, 1, bias=False)
binarizer = Binarizer(conv)
x = torch.randn(2, 3, 4, 4, requires_grad=True)
codes = binarizer(x)
loss = codes.sum()
loss.backward()
g = grads[0]
