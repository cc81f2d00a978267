"""Axes and colours for numbers of any range: linear, logarithmic, and honest about zero."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from torchtap.core.text import number
from torchtap.plot.style import PAPER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from numpy.typing import NDArray

    Array = NDArray[Any]

Kind = Literal["linear", "log", "log and zero", "signed log"]

_WIDE = 100.0
"""From this ratio of the largest to the least magnitude on, an axis is logarithmic."""
_WIDE_SIGNED = 1000.0
"""From this ratio on, of the largest to the middle magnitude, values of both signs are."""
_MOST_DECADES = 30


@dataclass(frozen=True, slots=True)
class Scale:
    """How numbers are laid on an axis.

    Attributes:
        kind: which.
        low: the least value.
        high: the largest.
        linear_below: magnitudes below are laid out linearly; 0 where there are none.
        beyond: how many values are smaller than any place on the axis.
    """

    kind: Kind
    low: float
    high: float
    linear_below: float = 0.0

    @property
    def words(self) -> str:
        """Return the sentence on the axis; empty where it is plain."""
        if self.kind == "log and zero":
            return f"Zeros stand at 0; the axis is logarithmic above {number(self.linear_below)}."
        if self.kind == "signed log":
            return f"The axis is linear between ±{number(self.linear_below)}, logarithmic beyond."
        return ""

    def apply_y(self, ax: Axes) -> None:
        """Lay the y axis out so, and mark where it is not logarithmic."""
        self._apply(ax, "y")
        if self.kind == "log and zero":
            ax.axhspan(-self.linear_below, self.linear_below, color=PAPER, linewidth=0, zorder=0)

    def apply_x(self, ax: Axes) -> None:
        """Lay the x axis out so, and mark where it is not logarithmic."""
        self._apply(ax, "x")
        if self.kind == "log and zero":
            ax.axvspan(-self.linear_below, self.linear_below, color=PAPER, linewidth=0, zorder=0)

    def _apply(self, ax: Axes, name: str) -> None:
        from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

        axis = ax.yaxis if name == "y" else ax.xaxis
        set_scale = ax.set_yscale if name == "y" else ax.set_xscale
        set_limits = ax.set_ylim if name == "y" else ax.set_xlim
        if self.kind == "linear":
            low, high = padded(self.low, self.high)
            set_limits(low, high)
            axis.set_major_formatter(FuncFormatter(lambda value, _: number(_tidied(value, high))))
            return
        if self.kind == "log":
            set_scale("log", nonpositive="mask")
            set_limits(self.low / 1.5, self.high * 1.5)
        else:
            set_scale("symlog", linthresh=self.linear_below, linscale=0.6)
            floor = -0.35 * self.linear_below if self.kind == "log and zero" else self.low * 1.5
            set_limits(floor, self.high * 1.5)
        axis.set_major_locator(FixedLocator(self.ticks()))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: number(float(f"{value:.3g}"))))

    def ticks(self) -> list[float]:
        """Values of the ticks of an axis that is not linear: powers of ten, and 0."""
        least = self.linear_below or self.low
        most = max(self.high, -self.low)
        first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
        by = max(1, -(-(last - first + 1) // (8 if self.kind != "signed log" else 4)))
        powers = [10.0**one for one in range(last, first - 1, -by)]
        if self.kind == "log" and sum(self.low <= power <= self.high for power in powers) < 2:
            powers = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5)]
        if self.kind == "log":
            return powers
        if self.kind == "signed log":
            return [*(-power for power in powers), 0.0, *powers]
        return [0.0, *powers]

    def norm(self) -> Normalize:
        """Return the scale of colours, from least to largest; symmetric where signs differ."""
        from matplotlib.colors import LogNorm, Normalize, SymLogNorm

        reach = max(abs(self.low), abs(self.high))
        if self.kind == "log":
            return LogNorm(self.low, self.high)
        if self.kind == "log and zero":
            return LogNorm(self.linear_below, self.high)
        if self.kind == "signed log":
            return SymLogNorm(self.linear_below, vmin=-reach, vmax=reach)
        if self.low < 0:
            return Normalize(-reach, reach)
        low, high = (self.low, self.high) if self.high > self.low else (0.0, self.high or 1.0)
        return Normalize(0.0 if low < 0.5 * high else low, high)


def scale_of(values: Array | Iterable[Array]) -> Scale:
    """Choose the scale for numbers; what is not finite is left out.

    Args:
        values: any number of them.

    Example:
        >>> [scale_of(np.array(one)).kind for one in ([1.0, 2.0], [1e-6, 1.0], [0.0, 1e-6, 1.0])]
        ['linear', 'log', 'log and zero']
    """
    parts = [values] if isinstance(values, np.ndarray) else list(values)
    flat = np.concatenate([np.ravel(part) for part in parts]) if parts else np.zeros(0)
    finite = flat[np.isfinite(flat)]
    if not finite.size:
        return Scale("linear", 0.0, 1.0)
    low, high = float(finite.min()), float(finite.max())
    sizes = np.abs(finite[finite != 0])
    if not sizes.size:
        return Scale("linear", 0.0, 1.0 if high == 0 else high)
    least, most = float(sizes.min()), float(sizes.max())
    if low < 0:
        middle = float(np.median(sizes))
        if most / middle < _WIDE_SIGNED:
            return Scale("linear", low, high)
        return Scale("signed log", low, high, 10.0 ** math.floor(math.log10(middle)))
    if most / least < _WIDE:
        return Scale("linear", low, high)
    floor = math.floor(math.log10(max(least, most / 10.0**_MOST_DECADES, 1e-300)))
    if low == 0 or 10.0**floor > least:
        return Scale("log and zero", 0.0, high, 10.0**floor)
    return Scale("log", low, high)


def padded(low: float, high: float) -> tuple[float, float]:
    """Limits with some air around; from 0 where the values come near it."""
    if high == low:
        gap = abs(high) * 0.5 or 1.0
        return low - gap, high + gap
    gap = 0.06 * (high - low)
    if 0 <= low < 0.35 * high:
        return (-0.02 * high if low == 0 else 0.0), high + gap
    return low - gap, high + gap


def _tidied(value: float, high: float) -> float:
    """Return a tick's value without what floats add to it."""
    return 0.0 if abs(value) < 1e-12 * abs(high) else float(f"{value:.6g}")
