import torch
from torch import nn

torch.manual_seed(0)


class PacConvTranspose2dFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight):
        ctx.save_for_backward(input, weight)
        return torch.einsum("imn,io->omn", (input, weight))

    @staticmethod
    def backward(ctx, grad_output):
        input, weight = ctx.saved_tensors
        grad_input = torch.einsum("omn,io->imn", (grad_output, weight))
        grad_weight = torch.einsum("imn,omn->io", (input, grad_output))
        return grad_input, grad_weight


weight = nn.Parameter(torch.randn(3, 4))
conv = nn.Conv2d(3, 3, 1)
image = torch.randn(1, 3, 5, 5)
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = PacConvTranspose2dFn.apply(conv(image)[0], weight)
    loss = out.float().pow(2).mean()
loss.backward()
