"""Every dtype of PyTorch, and tensors of it."""

from __future__ import annotations

import torch
from torch import Tensor

EVERY = sorted({one for one in vars(torch).values() if isinstance(one, torch.dtype)}, key=str)
"""All that this PyTorch has."""
QUANTIZED = [one for one in EVERY if str(one).startswith(("torch.qint", "torch.quint"))]
"""Dtypes of tensors that have a scale beside their numbers."""
PLAIN = [one for one in EVERY if one not in QUANTIZED]
"""Dtypes of tensors that are their bits."""


def any_bits(dtype: torch.dtype, *dims: int) -> Tensor:
    """Any bits that the dtype can have."""
    size = torch.empty(0, dtype=torch.uint8).view(dtype).element_size()
    numbers = torch.randint(0, 256, (*dims, size), dtype=torch.uint8)
    if dtype is torch.bool:
        return numbers[..., 0] > 127
    return numbers.reshape(-1).view(dtype).reshape(dims)


def named(name: str) -> torch.dtype:
    """A dtype that PyTorch has and its type stubs lack."""
    found: torch.dtype = getattr(torch, name)
    return found
