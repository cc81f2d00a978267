"""Rows of 16 numbers: what every kernel fills, and how two of them are merged."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ROW_WIDTH = 16
(
    NUMEL,
    NUM_FINITE,
    MEAN,
    M2,
    L1,
    SUM_SQUARES,
    MIN,
    MAX,
    ZEROS,
    NAN,
    POSINF,
    NEGINF,
    SUBNORMAL,
    NUM_TENSORS,
    NUM_COUNTED,
    LEAST_BIN,
) = range(ROW_WIDTH)
"""Places in a row: what every kernel fills, ``float64[16]``. Counts are exact up to 2^53.

The last is a note of the native kernel's to itself: 1 more than the least bin of a magnitude in
use, 1 where that is not known, 0 where what was counted stands in lists alone.
"""

Shape = tuple[int, ...]


def empty_rows(num_rows: int, device: torch.device | str = "cpu") -> Tensor:
    """Return rows that nothing was measured into, ``float64[num_rows, 16]``."""
    rows = torch.zeros(num_rows, ROW_WIDTH, dtype=torch.float64, device=device)
    rows[:, MIN], rows[:, MAX] = math.inf, -math.inf
    return rows


def blank_rows(*shape: int) -> NDArray[np.float64]:
    """Return blank rows as an array, ``float64[*shape, 16]``."""
    rows = np.zeros((*shape, ROW_WIDTH))
    rows[..., MIN], rows[..., MAX] = math.inf, -math.inf
    return rows


BLANK_ROW = blank_rows()
"""A row that nothing was measured into."""


def merged_row(row: Sequence[float], other: Sequence[float]) -> list[float]:
    """Merge two rows of numbers.

    Source: Chan, Golub & LeVeque 1979, "Updating formulae and a pairwise algorithm for computing
    sample variances", eq. 2.1.
    """
    merged = [one + two for one, two in zip(row, other, strict=True)]
    own, more = row[NUM_FINITE], other[NUM_FINITE]
    merged[MEAN] = row[MEAN] if own else other[MEAN] if more else row[MEAN]
    if own and more:
        share, delta = more / (own + more), other[MEAN] - row[MEAN]
        merged[MEAN] = _between(row[MEAN], other[MEAN], share)
        merged[M2] += delta * delta * own * share
    merged[MIN], merged[MAX] = min(row[MIN], other[MIN]), max(row[MAX], other[MAX])
    return merged


def merged_rows(one: NDArray[np.float64], two: NDArray[np.float64]) -> NDArray[np.float64]:
    """Merge two arrays of rows, row by row as :func:`merged_row` does."""
    own, more = one[..., NUM_FINITE], two[..., NUM_FINITE]
    merged = one + two
    with np.errstate(all="ignore"):  # An overflow is infinite, as in PyTorch.
        share = more / np.maximum(own + more, 1)
        delta = np.where((own > 0) & (more > 0), two[..., MEAN] - one[..., MEAN], 0.0)
        between = one[..., MEAN] * (1 - share) + two[..., MEAN] * share
        between = np.where(np.isfinite(delta), one[..., MEAN] + delta * share, between)
        merged[..., MEAN] = np.where(own > 0, between, two[..., MEAN])
        merged[..., M2] += delta * delta * own * share
    merged[..., MIN] = np.minimum(one[..., MIN], two[..., MIN])
    merged[..., MAX] = np.maximum(one[..., MAX], two[..., MAX])
    return merged


def _between(one: float, two: float, share: float) -> float:
    """Return the point at ``share`` of the way; also where the difference of both overflows."""
    delta = two - one
    return one + delta * share if math.isfinite(delta) else one * (1 - share) + two * share
