import torch

torch.manual_seed(0)


def covariance(activations):
    centred = activations - activations.mean(0)
    return centred.T @ centred / len(activations)


activations = torch.randn(4, 8)
cov = covariance(activations)
L = torch.linalg.cholesky(cov)
whitened = torch.linalg.solve_triangular(L, activations.T, upper=False)
