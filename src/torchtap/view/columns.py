"""The columns that a table of statistics can have: what each shows, and what it sorts by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from torchtap.view.cells import NONE, Cell, count, nonfinite, number, shape, share, size

if TYPE_CHECKING:
    from torchtap.stats.statistics import Statistics

_BARS = " ▁▂▃▄▅▆▇█"
_NUM_CELLS = 12


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        show: what stands in it.
        key: the number it stands for; ``None`` if it is none.
        left: whether it is aligned to the left.
    """

    show: Callable[[Statistics], str | Cell]
    key: Callable[[Statistics], float] | None = None
    left: bool = False


def sparkline(stats: Statistics, num_cells: int = _NUM_CELLS) -> str:
    """A histogram in one line of text, from the 1st to the 99th percentile."""
    cells = [] if stats.histogram is None else stats.histogram.shape(num_cells)
    top = max(cells, default=0)
    # Whatever is there at all shows at least the lowest bar.
    return "".join(_BARS[-(-one * (len(_BARS) - 1) // top)] for one in cells)


def _attribute(stats: Statistics, name: str) -> float:
    value: float = getattr(stats, name)
    return value


def _quantile(stats: Statistics, q: float) -> float:
    return math.nan if stats.histogram is None else stats.quantile(q)


def _beyond(stats: Statistics, side: str, dtype: str) -> float:
    share_of: Callable[[str], float] = getattr(stats, side)
    return math.nan if stats.histogram is None else share_of(dtype)


def _number(key: Callable[[Statistics], float]) -> Column:
    def show(stats: Statistics) -> str:
        return number(key(stats)) if stats.num_finite else NONE

    return Column(show, key)


def _count(name: str, *, bad: bool = False) -> Column:
    key = partial(_attribute, name=name)

    def show(stats: Statistics) -> Cell:
        value = int(key(stats))
        return Cell(count(value), "bad" if bad and value else "")

    return Column(show, key)


def _share_of(key: Callable[[Statistics], float]) -> Column:
    def show(stats: Statistics) -> str:
        part = key(stats)
        counted = stats.histogram.num_counted if stats.histogram is not None else 0
        return NONE if math.isnan(part) else share(round(part * counted), counted)

    return Column(show, key)


def _elements(name: str) -> Column:
    key = partial(_attribute, name=name)
    return Column(lambda stats: share(int(key(stats)), stats.numel), key)


COLUMNS: Mapping[str, Column] = {
    "shape": Column(lambda stats: shape(stats.shape), left=True),
    "dtype": Column(lambda stats: stats.dtype, left=True),
    "calls": _count("num_tensors"),
    "bytes": Column(lambda stats: size(stats.nbytes), partial(_attribute, name="nbytes")),
    "numel": _count("numel"),
    "num_finite": _count("num_finite"),
    **{
        name: _number(partial(_attribute, name=name))
        for name in ("mean", "std", "rms", "l1", "l2", "min", "max", "absmax", "update_ratio")
    },
    "zeros": _elements("zeros"),
    "subnormal": _elements("subnormal"),
    "nan": _count("nan", bad=True),
    "posinf": _count("posinf", bad=True),
    "neginf": _count("neginf", bad=True),
    "NaN/Inf": Column(
        lambda stats: nonfinite(stats.nan, stats.posinf, stats.neginf),
        partial(_attribute, name="nonfinite"),
    ),
    **{
        name: _number(partial(_quantile, q=q))
        for name, q in (("p1", 0.01), ("p25", 0.25), ("median", 0.5), ("p75", 0.75), ("p99", 0.99))
    },
    **{
        f"{short}_{side}": _share_of(partial(_beyond, side=side, dtype=short))
        for short in ("fp16", "bf16", "e4m3", "e5m2")
        for side in ("underflow", "overflow")
    },
    "histogram": Column(sparkline, left=True),
}
"""What ``torchtap stats --columns`` can show, by name."""
DEFAULT_COLUMNS = ("shape", "mean", "std", "absmax", "l2", "zeros", "NaN/Inf", "histogram")
