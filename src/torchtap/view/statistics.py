"""Statistics as text: one line for a tensor, a table for a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from torchtap.view.cells import (
    NONE,
    Cell,
    columns,
    count,
    middle,
    nonfinite,
    number,
    paint,
    plural,
    shape,
    share,
    size,
    typed,
)

if TYPE_CHECKING:
    from torchtap.stats.statistics import Statistics
    from torchtap.store.table import Row, Table

_BARS = " ▁▂▃▄▅▆▇█"
_NUM_CELLS = 12
_MOST_ROWS = 40

_Column = Callable[["Statistics"], "str | Cell"]


def show_statistics(stats: Statistics) -> str:
    """One line: what it is, range, histogram, mean, std, and what is not finite."""
    kind = typed(stats.dtype, stats.shape) if stats.shape is not None else stats.dtype
    tensors = plural(stats.num_tensors, "tensor") if stats.num_tensors != 1 else ""
    head = " ".join(part for part in (kind, tensors, size(stats.nbytes)) if part)
    notes = "".join(f", {note}" for note in stats.notes)
    if not stats.numel:
        return f"{head}{notes}: empty"
    bad = nonfinite(stats.nan, stats.posinf, stats.neginf).text
    said = f", {bad}" if stats.nonfinite else ""
    if not stats.num_finite:
        return f"{head}{notes}: nothing finite{said}"
    bars = f" {sparkline(stats)} " if stats.histogram is not None else " .. "
    return (
        f"{head}{notes}: [{number(stats.min)}{bars}{number(stats.max)}] "
        f"mean {number(stats.mean)}, std {number(stats.std)}{said}"
    )


def sparkline(stats: Statistics, num_cells: int = _NUM_CELLS) -> str:
    """A histogram in one line of text, from the 1st to the 99th percentile."""
    cells = [] if stats.histogram is None else stats.histogram.shape(num_cells)
    top = max(cells, default=0)
    # Whatever is there at all shows at least the lowest bar.
    return "".join(_BARS[-(-one * (len(_BARS) - 1) // top)] for one in cells)


COLUMNS: Mapping[str, _Column] = {
    "calls": lambda s: count(s.num_tensors),
    "shape": lambda s: shape(s.shape),
    "dtype": lambda s: s.dtype,
    "bytes": lambda s: size(s.nbytes),
    "numel": lambda s: count(s.numel),
    "num_finite": lambda s: count(s.num_finite),
    "mean": lambda s: _number(s, s.mean),
    "std": lambda s: _number(s, s.std),
    "rms": lambda s: _number(s, s.rms),
    "l1": lambda s: number(s.l1),
    "l2": lambda s: number(s.l2),
    "min": lambda s: _number(s, s.min),
    "max": lambda s: _number(s, s.max),
    "absmax": lambda s: _number(s, s.absmax),
    "zeros": lambda s: share(s.zeros, s.numel),
    "nan": lambda s: nonfinite(s.nan, 0, 0),
    "posinf": lambda s: nonfinite(0, s.posinf, 0),
    "neginf": lambda s: nonfinite(0, 0, s.neginf),
    "NaN/Inf": lambda s: nonfinite(s.nan, s.posinf, s.neginf),
    "subnormal": lambda s: share(s.subnormal, s.numel),
    "update_ratio": lambda s: number(s.update_ratio),
    "median": lambda s: _quantile(s, 0.5),
    "p1": lambda s: _quantile(s, 0.01),
    "p99": lambda s: _quantile(s, 0.99),
    "fp16_underflow": lambda s: _share(s, "underflow", "float16"),
    "fp16_overflow": lambda s: _share(s, "overflow", "float16"),
    "e4m3_underflow": lambda s: _share(s, "underflow", "float8_e4m3fn"),
    "e4m3_overflow": lambda s: _share(s, "overflow", "float8_e4m3fn"),
    "histogram": lambda s: sparkline(s),
}
"""What ``torchtap stats --columns`` can show."""
DEFAULT_COLUMNS = ("shape", "mean", "std", "absmax", "l2", "zeros", "NaN/Inf", "histogram")
_LEFT = ("shape", "dtype", "histogram")


def show_stats_table(
    table: Table,
    names: Sequence[str] = DEFAULT_COLUMNS,
    *,
    limit: int | None = _MOST_ROWS,
    color: bool = False,
) -> str:
    """One line per site with the statistics that were asked for, in the order of the table."""
    rows = list(table)
    if not rows:
        return "The table is empty."
    cells = [(str(row.site), *(COLUMNS[name](row.stats) for name in names)) for row in rows]
    align = "l" + "".join("l" if name in _LEFT else "r" for name in names)
    text = columns(cells, ("site", *names), align, elastic={0: 16}, color=color)
    head, *lines = text.split("\n")
    front, left_out, back = middle(lines, limit)
    between = [f"… {count(left_out)} more sites …"] if left_out else []
    total = f"{plural(len(rows), 'site')}, {_steps(rows)}"
    return "\n".join([paint(total, "head", color=color), "", head, *front, *between, *back])


def _steps(rows: Sequence[Row]) -> str:
    most = max(row.steps for row in rows)
    return "one step" if most == 1 else f"the last of {plural(most, 'step')}"


def _number(stats: Statistics, value: float) -> str:
    return number(value) if stats.num_finite else NONE


def _quantile(stats: Statistics, q: float) -> str:
    return number(stats.quantile(q)) if stats.histogram is not None else NONE


def _share(stats: Statistics, what: str, dtype: str) -> str:
    if stats.histogram is None:
        return NONE
    part: float = getattr(stats.histogram, what)(dtype)
    total = stats.histogram.num_counted
    return share(round(part * total), total) if total else NONE
