import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias):
        ctx.save_for_backward(input, weight)
        return F.linear(input, weight, bias)

    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        C_out, C_in = weight.shape
        grad_output_flatten = grad_output.reshape(-1, C_out)
        input_flatten = input.reshape(-1, C_in)
        grad_input = grad_output_flatten.mm(weight)
        grad_weight = grad_output_flatten.t().mm(input_flatten)
        return grad_input, grad_weight, grad_output_flatten.sum(0)


class QLinear(nn.Linear):
    def forward(self, input):
        return linear.apply(input, self.weight, self.bias)


model = nn.Sequential(nn.Linear(4, 6), QLinear(6, 3))
tokens = torch.randn(2, 5, 4)              # (batch, tokens, features)
loss = model(tokens).pow(2).mean()
loss.backward()
