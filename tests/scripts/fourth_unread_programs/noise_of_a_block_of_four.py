import torch

torch.manual_seed(0)


def block_noise(n, block_size=4, gamma=1 / 3 + 1e-6):
    eye = torch.eye(block_size)
    cov = eye * (1 + gamma) - torch.ones(block_size, block_size) * gamma
    cov += eye * 1e-8
    L = torch.linalg.cholesky(cov)
    return cov, L, torch.randn(n, block_size) @ L.T


cov, L, noise = block_noise(6)
