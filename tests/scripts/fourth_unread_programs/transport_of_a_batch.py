import torch
from torch.func import vmap

torch.manual_seed(0)
C = (torch.arange(4.0)[:, None] - torch.arange(4.0)[None]).pow(2)


def sinkhorn(p, q, epsilon=1.0, steps=60):
    K = torch.exp(-C / epsilon)
    u = torch.ones_like(p)
    v = torch.ones_like(q)
    for _ in range(steps):
        old = u
        v = q / (K.T @ u)
        u = p / (K @ v)
        err = (u - old).abs().max()
        if err < 1e-9:
            break
    return (u[:, None] * K * v[None] * C).sum()


P = torch.rand(3, 4).softmax(-1)
Q = torch.rand(3, 4).softmax(-1)
loss = vmap(sinkhorn)(P, Q)
