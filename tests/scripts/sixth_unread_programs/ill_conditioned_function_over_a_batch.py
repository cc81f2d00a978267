import torch
from torch.func import vmap

torch.manual_seed(0)


def inverse_where_safe(th):
    if th > 0:
        return 1 / th
    else:
        return th


ths = torch.randn(6)
out = vmap(inverse_where_safe)(ths)
