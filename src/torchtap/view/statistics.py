"""Statistics as text: one line for a tensor, a table for a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtap.view.cells import (
    columns,
    count,
    middle,
    nonfinite,
    number,
    paint,
    plural,
    size,
    typed,
)
from torchtap.view.columns import COLUMNS, DEFAULT_COLUMNS, sparkline

if TYPE_CHECKING:
    from torchtap.stats.slices import Slices
    from torchtap.stats.statistics import Statistics
    from torchtap.store.table import Table

_MOST_ROWS = 40


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


def show_slices(slices: Slices) -> str:
    """One line: how many slices, their largest magnitudes, and how many are dead or saturated."""
    num = len(slices.rows)
    if not num:
        return "no slices"
    most = max(int(one) for one in slices.numel.tolist())
    absmax = [one for one in slices.absmax.tolist() if not math.isnan(one)]
    ends = f"[{number(min(absmax))} .. {number(max(absmax))}]" if absmax else "nothing finite"
    dead, saturated = len(slices.dead_slices()), len(slices.saturated_slices())
    said = [f"{plural(num, 'slice')} of {plural(most, 'element')}: absmax {ends}"]
    said += [f"{count(dead)} dead"] if dead else []
    said += [f"{count(saturated)} saturated"] if saturated else []
    return ", ".join([*said, *slices.notes])


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
    cells = [(str(row.site), *(COLUMNS[name].show(row.stats) for name in names)) for row in rows]
    align = "l" + "".join("l" if COLUMNS[name].left else "r" for name in names)
    text = columns(cells, ("site", *names), align, elastic={0: 36}, color=color)
    head, *lines = text.split("\n")
    front, left_out, back = middle(lines, limit)
    between = [f"… {count(left_out)} more sites …"] if left_out else []
    total = f"{plural(len(rows), 'site')}, {_steps(table)}"
    return "\n".join([paint(total, "head", color=color), "", head, *front, *between, *back])


def _steps(table: Table) -> str:
    most = max(row.steps for row in table)
    if most == 1:
        return "one step"
    return f"{'all' if table.is_merged else 'the last'} of {plural(most, 'step')}"
