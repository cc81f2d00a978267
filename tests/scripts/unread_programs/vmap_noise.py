import torch


def noisy(x):
    return x + torch.randn(3)


torch.manual_seed(0)
x = torch.zeros(4, 3)
y = torch.vmap(noisy)(x)
