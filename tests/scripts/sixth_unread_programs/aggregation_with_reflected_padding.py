import torch
import torch.nn.functional as F
from torch.autograd import Function

torch.manual_seed(0)


class AggregationRefpad(Function):
    """Weights of every pixel over its 3 x 3 neighbours, with the border reflected."""

    @staticmethod
    def forward(ctx, input, weight, padding):
        n, c, height, width = input.shape
        padded = F.pad(input, (padding,) * 4, mode='reflect')
        cols = F.unfold(padded, 3).view(n, c, 9, height * width)
        ctx.save_for_backward(cols, weight)
        ctx.shape, ctx.padding = input.shape, padding
        return (cols * weight.view(n, 1, 9, height * width)).sum(2).view(n, c, height, width)

    @staticmethod
    def backward(ctx, grad_output):
        cols, weight = ctx.saved_tensors
        n, c, height, width = ctx.shape
        p = ctx.padding
        g = grad_output.reshape(n, c, 1, height * width)
        grad_weight = (cols * g).sum(1).view_as(weight)
        grad_cols = (g * weight.view(n, 1, 9, height * width)).reshape(n, c * 9, height * width)
        grad_input = F.fold(grad_cols, (height + 2 * p, width + 2 * p), 3)
        grad_input[:, :, 2 * p] += grad_input[:, :, 0]
        grad_input[:, :, -1 - 2 * p] += grad_input[:, :, -1]
        grad_input[:, :, :, 2 * p] += grad_input[:, :, :, 0]
        grad_input[:, :, :, -1 - 2 * p] += grad_input[:, :, :, -1]
        grad_input = grad_input[:, :, p:p + width, p:p + width]
        return grad_input, grad_weight, None


x = torch.randn(1, 2, 6, 9, requires_grad=True)
w = torch.randn(1, 9, 6, 9, requires_grad=True)
out = AggregationRefpad.apply(x, w, 1)
out.sum().backward()
