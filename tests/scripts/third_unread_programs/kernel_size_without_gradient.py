import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class KernelConv2DFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, kernel, kernel_size):
        ctx.kernel_size = kernel_size
        ctx.save_for_backward(input, kernel)
        n, c, h, w = input.shape
        cols = F.unfold(input, kernel_size, padding=kernel_size // 2).view(n, c, kernel_size**2, h, w)
        return (cols * kernel.view(n, c, kernel_size**2, h, w)).sum(2)

    @staticmethod
    def backward(ctx, grad_output):
        input, kernel = ctx.saved_tensors
        k = ctx.kernel_size
        n, c, h, w = input.shape
        cols = F.unfold(input, k, padding=k // 2).view(n, c, k**2, h, w)
        grad_kernel = (cols * grad_output.unsqueeze(2)).view_as(kernel)
        spread = (kernel.view(n, c, k**2, h, w) * grad_output.unsqueeze(2)).view(n, c * k**2, h * w)
        grad_input = F.fold(spread, (h, w), k, padding=k // 2)
        return grad_input, grad_kernel


input = torch.randn(2, 3, 5, 5, requires_grad=True)
kernel = torch.randn(2, 27, 5, 5, requires_grad=True)
out = KernelConv2DFunction.apply(input, kernel, 3)
out.pow(2).sum().backward()
