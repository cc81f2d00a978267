import torch
import numpy as np


@torch.compile(backend="eager", fullgraph=True)
def fn(x):
    x = x ** 2
    print("HI")
    return 2 * x


out = fn(torch.arange(8))
