"""Fewer points for many steps: each keeps the extremes of the steps that it stands for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_DIGITS = 4


@dataclass(frozen=True, eq=False)
class Buckets:
    """Parts of the steps of a run, each of about as many steps as the others.

    Attributes:
        steps: of the run, ascending.
        starts: where each part begins in ``steps``.
    """

    steps: NDArray[np.int64]
    starts: NDArray[np.intp]

    @staticmethod
    def of(steps: Sequence[int], most: int) -> Buckets:
        """Cut steps into at most ``most`` parts; where they are fewer, each is a part."""
        number = min(len(steps), most)
        starts = np.linspace(0, len(steps), number, endpoint=False).astype(np.intp)
        return Buckets(np.asarray(steps, dtype=np.int64), starts)

    @property
    def is_exact(self) -> bool:
        """Return whether each part is one step."""
        return len(self.starts) == len(self.steps)

    @property
    def first(self) -> list[int]:
        """Return the first step of each part."""
        steps: list[int] = self.steps[self.starts].tolist()
        return steps

    @property
    def last(self) -> list[int]:
        """Return the last step of each part."""
        ends = np.append(self.starts[1:], len(self.steps)) - 1
        steps: list[int] = self.steps[ends].tolist() if len(self.starts) else []
        return steps

    def extremes(self, values: Floats) -> tuple[Floats, Floats]:
        """Return the smallest and the largest number of each part, ``float64[parts]`` each.

        NaN stands for a part that has no number: one NaN beside numbers hides none of them.
        """
        if not len(self.starts):
            return values, values
        missing = np.isnan(values)
        low = np.minimum.reduceat(np.where(missing, math.inf, values), self.starts)
        high = np.maximum.reduceat(np.where(missing, -math.inf, values), self.starts)
        empty = np.logical_and.reduceat(missing, self.starts)
        low[empty] = high[empty] = math.nan
        return low, high


def packed(buckets: Buckets, values: Floats) -> Any:
    """Pack a number over the steps for JSON.

    Returns:
        one number if it is the same in all steps; a list with a number for each part if each is
        one step; else ``{"low": [...], "high": [...]}``; as :func:`rounded` writes them.
    """
    low, high = buckets.extremes(values)
    if len(low) and (low == low[0]).all() and (high == low[0]).all():
        return rounded(low)[0]
    if buckets.is_exact:
        return rounded(low)
    return {"low": rounded(low), "high": rounded(high)}


def rounded(values: Floats | Sequence[float]) -> list[float | str | None]:
    """Round numbers to four significant digits, for JSON.

    JSON has neither NaN, which becomes ``None``, nor infinity: that is ``"inf"`` or ``"-inf"``.
    """
    return [
        float(f"{one:.{_DIGITS}g}") if math.isfinite(one) else None if math.isnan(one) else str(one)
        for one in np.asarray(values, dtype=np.float64).tolist()
    ]
