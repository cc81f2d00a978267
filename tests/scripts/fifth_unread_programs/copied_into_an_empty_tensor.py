import torch
from torch.func import vmap

torch.manual_seed(0)


def skew(x):
    K = torch.empty(x.shape[0], 3)
    K.zero_()
    K[0, 1], K[0, 2] = -x[2], x[1]
    K[1, 0], K[1, 2] = x[2], -x[0]
    K[2, 0], K[2, 1] = -x[1], x[0]
    return K


def rodrigues(x):
    theta = x.norm()
    K = skew(x / theta)
    return torch.eye(3) + torch.sin(theta) * K + (1 - torch.cos(theta)) * (K @ K)


omega = torch.randn(4, 3)
single = rodrigues(omega[0])
R = vmap(rodrigues)(omega)
K = vmap(skew)(omega)
