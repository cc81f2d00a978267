"""Rows of a batch: whether dimension 0 counts them, and other rows in their place."""

from __future__ import annotations

import torch
from torch import Tensor


def has_rows(tensor: Tensor, num: int) -> bool:
    """Return whether dimension 0 may count so many rows."""
    return tensor.dim() > 0 and len(tensor) == num


def other_rows(tensor: Tensor, num: int) -> Tensor:
    """Return a batch whose first rows are others: reversed, and if they are numbers, moved."""
    own = tensor[:num]
    other = own.flip(tuple(range(own.dim())))
    if tensor.is_floating_point() or tensor.is_complex():
        other = 2 * other + 1
    return torch.cat([other, tensor[num:]])
