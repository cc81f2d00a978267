"""Some rows of a batch: their numbers in words, and a map that is 0 there."""

from __future__ import annotations

from torch import Tensor

_MOST = 6


def row_numbers(chosen: Tensor) -> str:
    """Return the numbers of the rows where a mask is true, as text.

    Example:
        >>> import torch
        >>> row_numbers(torch.tensor([True, False, True]))
        '0, 2'
    """
    rows = chosen.nonzero()[:, 0].tolist()
    return ", ".join(map(str, rows[:_MOST])) + (", ..." if len(rows) > _MOST else "")


def zeroed(values: Tensor, chosen: Tensor) -> Tensor:
    """Return values that are 0 in the chosen rows."""
    return values.masked_fill(chosen.reshape(-1, *[1] * (values.dim() - 1)), 0)
