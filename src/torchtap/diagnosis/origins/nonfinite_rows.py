"""The samples of a batch that make something not finite: found by computing them alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from torchtap.core.blame import is_own_fault

Rows = Sequence[int]
IsClean = Callable[[Callable[[Tensor], Tensor]], bool]
"""Computes the samples that the given function takes out of each tensor of the batch."""
_MOST_RUNS, _MOST_SECONDS = 128, 30.0


def num_samples(tensors: Iterable[Tensor]) -> int:
    """Return how many samples a batch has: the length of the first tensor with a dim; 0 without."""
    return next((tensor.shape[0] for tensor in tensors if tensor.ndim), 0)


def bad_rows(num: int, is_clean: IsClean) -> tuple[int, ...]:
    """Return the samples that are not finite alone; none where that cannot be told.

    Halves that are clean are not looked into any further, so a few bad samples of many take a few
    runs for each. Samples that depend on each other (a batch norm in training mode) may be clean
    or refused alone: then there are none.

    Args:
        num: of samples.
        is_clean: computes some of them.
    """
    runs, began = 0, time.monotonic()

    def look(rows: Rows) -> list[int]:
        nonlocal runs
        runs += 1
        if runs > _MOST_RUNS or time.monotonic() - began > _MOST_SECONDS:
            raise _TooMany
        if is_clean(_taking(rows, num)):
            return []
        if len(rows) == 1:
            return list(rows)
        half = len(rows) // 2
        return look(rows[:half]) + look(rows[half:])

    if num < 2:
        return tuple(range(num))
    try:
        half = num // 2
        return tuple(look(range(half)) + look(range(half, num)))
    except _TooMany:
        return ()
    except Exception as error:
        # The model may refuse fewer samples, with any exception: nothing is known, then.
        if is_own_fault(error):
            raise
        return ()


class _TooMany(Exception):
    """It would take too many runs."""


def _taking(rows: Rows, num: int) -> Callable[[Tensor], Tensor]:
    def take(tensor: Tensor) -> Tensor:
        if tensor.ndim and tensor.shape[0] == num and tensor.layout is torch.strided:
            return tensor[rows[0] : rows[-1] + 1]
        return tensor

    return take
