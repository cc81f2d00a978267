"""Draws numbers over steps as one line of text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_BARS = "▁▂▃▄▅▆▇█"
BAD, ZERO = "!", "_"
"""Cells of steps in which something was not finite, and in which all was zero."""


def spark(values: Sequence[float] | NDArray[np.float64], room: int, *, log: bool = False) -> str:
    """Draw numbers from the first to the last, one cell for one or several of them.

    A cell shows that of its numbers that is farthest from the median of all, so no extreme is lost.
    The scale goes from the least to the largest of them; a logarithmic one over a factor of two
    at least, so that what hardly changes looks like it.

    Args:
        values: NaN where there is none, Inf where something was not finite.
        room: cells at most.
        log: by powers of ten; numbers below zero have no place there.

    Example:
        >>> spark([1, 2, 3, float("inf"), 0], 10), spark([5, 5, 5], 10, log=True)
        ('▃▆█!▁', '▅▅▅')
    """
    given = np.asarray(values, dtype=np.float64)
    given = given[~np.isnan(given)]
    if not len(given):
        return ""
    with np.errstate(all="ignore"):
        scaled = np.log10(given) if log else given
    finite = scaled[np.isfinite(scaled)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    middle = np.median(finite) if len(finite) else 0.0
    if log and high - low < np.log10(2):
        low, high = (low + high) / 2 - np.log10(2) / 2, (low + high) / 2 + np.log10(2) / 2
    parts = np.array_split(np.arange(len(scaled)), min(room, len(scaled)))
    return "".join(_cell(scaled[part], given[part], low, high, middle) for part in parts)


def _cell(
    scaled: NDArray[np.float64],
    given: NDArray[np.float64],
    low: float,
    high: float,
    middle: float,
) -> str:
    if np.isinf(given).any():
        return BAD
    finite = scaled[np.isfinite(scaled)]
    if not len(finite):
        return ZERO
    value = finite[np.argmax(abs(finite - middle))]
    # Rounded: logarithms differ in their last bits from one processor to another.
    share = round((value - low) / (high - low), 9) if high > low else 0.5
    return _BARS[min(int(share * len(_BARS)), len(_BARS) - 1)]
