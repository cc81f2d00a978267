import torch

torch.manual_seed(0)


class softsplat_func(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tenIn, tenFlow):
        base = torch.arange(tenIn.shape[-1], dtype=tenIn.dtype).view(1, 1, -1)
        pos = base + tenFlow
        left = pos.floor().clamp(0, tenIn.shape[-1] - 1)
        wr = pos - left
        tenOut = torch.zeros_like(tenIn)
        tenOut.scatter_add_(2, left.long(), tenIn * (1 - wr))
        right = (left + 1).clamp(max=tenIn.shape[-1] - 1)
        tenOut.scatter_add_(2, right.long(), tenIn * wr)
        ctx.save_for_backward(tenIn, tenFlow, left, right)
        return tenOut

    @staticmethod
    def backward(ctx, tenOutgrad):
        tenIn, tenFlow, left, right = ctx.saved_tensors
        base = torch.arange(tenIn.shape[-1], dtype=tenIn.dtype).view(1, 1, -1)
        wr = base + tenFlow - left
        gl, gr = tenOutgrad.gather(2, left.long()), tenOutgrad.gather(2, right.long())
        return gl * (1 - wr) + gr * wr, (gr - gl) * tenIn


tenIn = torch.rand(1, 1, 5, requires_grad=True)
scale = torch.tensor(0.3, requires_grad=True)
tenFlow = scale * torch.ones(1, 1, 5)
forward_splat = softsplat_func.apply(tenIn, tenFlow)
tenFlow *= -1.0
backward_splat = softsplat_func.apply(tenIn, tenFlow)
loss = (forward_splat - backward_splat).pow(2).sum()
loss.backward()
