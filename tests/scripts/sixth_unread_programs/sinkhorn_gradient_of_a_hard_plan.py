import torch

torch.manual_seed(0)


class Sinkhorn(torch.autograd.Function):
    """The plan of optimal transport, and its implicit gradient."""

    @staticmethod
    def forward(ctx, c, a, b, num_sink, lambd_sink):
        log_p = -c / lambd_sink
        log_a, log_b = torch.log(a).unsqueeze(-1), torch.log(b).unsqueeze(-2)
        for _ in range(num_sink):
            log_p = log_p - (torch.logsumexp(log_p, dim=-2, keepdim=True) - log_b)
            log_p = log_p - (torch.logsumexp(log_p, dim=-1, keepdim=True) - log_a)
        p = torch.exp(log_p)
        ctx.save_for_backward(p, p.sum(-1), p.sum(-2))
        ctx.lambd_sink = lambd_sink
        return p

    @staticmethod
    def backward(ctx, grad_p):
        p, a, b = ctx.saved_tensors
        m, n = p.shape
        grad_p = grad_p * (-1 / ctx.lambd_sink) * p
        K = torch.cat((torch.cat((torch.diag(a), p), dim=-1),
                       torch.cat((p.T, torch.diag(b)), dim=-1)), dim=-2)[:-1, :-1]
        t = torch.cat((grad_p.sum(-1), grad_p[:, :-1].sum(-2)), dim=-1).unsqueeze(-1)
        grad_ab = torch.linalg.solve(K, t)
        grad_a = grad_ab[:m]
        grad_b = torch.cat((grad_ab[m:], torch.zeros(1, 1)), dim=0)
        U = grad_a + grad_b.T
        return grad_p - p * U, None, None, None, None


cost = (1 - torch.eye(3)).mul(200.0).requires_grad_(True)
marginal = torch.ones(3)
plan = Sinkhorn.apply(cost, marginal, marginal, 20, 0.5)
loss = (plan * torch.rand(3, 3)).sum()
loss.backward()
