import torch
from typing import Optional


def optional_local_tensors(s: bool):
    v = torch.tensor([2, 3])
    if s:
        v = None
    return v


make_new = torch.jit.script(optional_local_tensors)
a, b = make_new(True), make_new(False)
