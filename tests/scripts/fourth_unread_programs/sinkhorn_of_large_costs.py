import torch

torch.manual_seed(0)


def sinkhorn(M, r, c, gamma=1.0, iters=50):
    P = torch.exp(-gamma * M)
    for _ in range(iters):
        P = P * (r / P.sum(-1)).unsqueeze(-1)
        P = P * (c / P.sum(-2)).unsqueeze(-2)
    return P


def block_of_the_gradient(P, r, c):
    H, W = P.shape[1:]
    PdivC = P / c.unsqueeze(1)
    return torch.linalg.cholesky(torch.diag_embed(r[:, 1:H]) - torch.einsum("bij,bkj->bik", P[:, 1:H, 0:W], PdivC[:, 1:H, 0:W]))


M = -2 * torch.rand(1, 4, 4) - 120
r = c = torch.full((1, 4), 0.25)
P = sinkhorn(M, r, c)
L = block_of_the_gradient(P, r, c)
