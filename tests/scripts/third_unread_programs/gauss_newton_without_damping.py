import torch

torch.manual_seed(0)


def solve_dense(A, b, damping=0.0):
    AtA = A.transpose(1, 2) @ A
    Atb = A.transpose(1, 2) @ b
    AtA = AtA + damping * torch.eye(AtA.shape[-1])
    lower = torch.linalg.cholesky(AtA)
    return torch.cholesky_solve(Atb, lower)


A = torch.randn(2, 6, 3)
A[1, :, 2] = 0.0
b = torch.randn(2, 6, 1)
delta = solve_dense(A, b)
