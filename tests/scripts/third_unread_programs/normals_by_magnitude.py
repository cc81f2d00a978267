import torch

torch.manual_seed(0)


def normalize(normals):
    magnitude = torch.pow(normals, 2).sum(1)
    magnitude = magnitude.sqrt().repeat(3, 1, 1, 1)
    normed = normals / (magnitude + 1e-6)
    return normed


normals = torch.randn(4, 3, 5, 5)
normed = normalize(normals)
