from typing import Optional

import torch
import torch.fft

torch.manual_seed(0)


def fn(t, n: Optional[int]):
    return torch.fft.fftn(t, n)


scripted = torch.jit.script(fn)
t = torch.randn(6)
out = scripted(t, 4)
