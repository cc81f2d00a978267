"""The rows of a table of statistics, and its columns: how each is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchtap.core.site import Site
from torchtap.core.text import NONE, Cell, count, nonfinite, number, shape, share, short_count, size
from torchtap.stats.named_numbers import NAMES, is_there, value_of
from torchtap.stats.statistics import Statistics, sparkline


@dataclass(frozen=True, slots=True)
class Row:
    """The facts about one site.

    Attributes:
        site: where.
        type: class name of the module, ``""`` for a mark.
        calls: most calls in one step (for gradients: most values).
        steps: number of steps with a record.
        shape: shape of the last value; of what was measured, ``None`` if it varies.
        dtype: of the last value, without ``torch.``.
        nbytes: bytes of all values together, of all steps.
        stats: over all values of one step; in a merged table, of all steps.
        step: which step ``stats`` are of, the last of this site; ``None`` in a merged table.
    """

    site: Site
    type: str
    calls: int
    steps: int
    shape: tuple[int, ...] | None
    dtype: str
    nbytes: int
    stats: Statistics
    step: int | None = None


ROW_COLUMNS: Mapping[str, str] = {
    "type": "class name of the module",
    "shape": "shape of the last value",
    "dtype": "of the last value",
    "calls": "most calls in one step",
    "steps": "number of steps with a value",
    "step": "which step the numbers are of; none where steps are merged",
    "NaN/Inf": "NaN, Inf and -Inf elements, in words; sorts by nonfinite",
    "histogram": "a picture from the 1st to the 99th percentile",
}
"""Columns beside the numbers of ``NAMES`` and the further statistics, and what they are."""


def text_of(row: Row, name: str) -> str | Cell:
    """Return the text or cell in a column of a row."""
    if name in _WORDS:
        return _WORDS[name](row)
    if not is_there(row.stats, name):
        return NONE
    value = value_of(row.stats, name)
    if name not in NAMES:
        return text_of_result(value)
    return _text_of_number(row, name, value)


def is_left(name: str) -> bool:
    """Return whether a column is aligned to the left."""
    return name in ("type", "shape", "dtype", "histogram")


def text_of_result(value: Any) -> str:
    """Return the result of a further statistic in a few words."""
    if value is None:
        return "none"
    if isinstance(value, Tensor):
        return _text_of_vector(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return ", ".join(map(text_of_result, value)) or "none"
    in_words = getattr(value, "in_words", None)
    return str(in_words()) if callable(in_words) else str(value)


_COUNTS = ("numel", "num_finite", "num_tensors")
_BAD = ("nan", "posinf", "neginf", "nonfinite")
_SHARES = ("zeros", "subnormal")


def _text_of_number(row: Row, name: str, value: float) -> str | Cell:
    stats = row.stats
    if name == "nbytes":
        return size(int(value))
    if name in _COUNTS:
        return count(int(value))
    if name in _BAD:
        return Cell(count(int(value)), "bad" if value else "")
    if name in _SHARES:
        return share(int(value), stats.numel) if stats.numel else NONE
    if name.endswith(("_underflow", "_overflow")):
        counted = 0 if stats.histogram is None else stats.histogram.num_counted
        return NONE if math.isnan(value) else share(round(value * counted), counted)
    if name in ("update_ratio", "weight_l2") and not row.site.kind.compared_with:
        return NONE
    return number(value) if stats.num_finite and _is_counted(stats, name) else NONE


def _is_counted(stats: Statistics, name: str) -> bool:
    return stats.histogram is not None or not NAMES[name].needs_histogram


def _text_of_vector(value: Any) -> str:
    """Return ``8 numbers [0.1 .. 3]``."""
    if value.numel() == 1:
        return number(float(value))
    finite = [one for one in value.flatten().tolist() if math.isfinite(abs(one))]
    ends = f"[{number(min(finite))} .. {number(max(finite))}]" if finite else "nothing finite"
    return f"{short_count(value.numel())} numbers {ends}"


_WORDS: Mapping[str, Callable[[Row], str | Cell]] = {
    "type": lambda row: row.type or NONE,
    "shape": lambda row: shape(row.shape),
    "dtype": lambda row: row.dtype,
    "calls": lambda row: count(row.calls),
    "steps": lambda row: count(row.steps),
    "step": lambda row: NONE if row.step is None else str(row.step),
    "NaN/Inf": lambda row: nonfinite(row.stats.nan, row.stats.posinf, row.stats.neginf),
    "histogram": lambda row: sparkline(row.stats),
}
TABLE_COLUMNS = ("shape", "mean", "std", "min", "max", "zeros", "NaN/Inf")
"""Columns of ``run.table()`` where none are chosen."""
DEFAULT_COLUMNS = ("shape", "mean", "std", "absmax", "l2", "zeros", "NaN/Inf", "histogram")
"""Columns of ``torchtap stats`` where none are chosen."""
