import torch
import torch.nn as nn

torch.manual_seed(0)


class SignFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, is_training=True):
        if is_training:
            prob = input.new(input.size()).uniform_()
            x = input.clone()
            x[(1 - input) / 2 <= prob] = 1
            x[(1 - input) / 2 > prob] = -1
            return x
        else:
            return input.sign()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class Sign(nn.Module):
    def forward(self, x):
        return SignFunction.apply(x, self.training)


conv = nn.Linear(4, 6)
codes = Sign()(torch.tanh(conv(torch.randn(3, 4))))
codes.retain_grad()
loss = (codes - 0.3).pow(2).sum()
loss.backward()
