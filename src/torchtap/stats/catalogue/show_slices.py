"""Slices as text: in one line, and as a table with a row per slice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from torchtap.core.printed_page import Grid, Line, Page
from torchtap.core.text import NONE, count, number, plural, share

MOST_ROWS = 40
SLICE_COLUMNS = ("numel", "mean", "std", "absmax", "l2", "zeros", "saturated")
"""Columns that are shown of each slice by default."""


def one_line(
    numel: Tensor, absmax: Tensor, *, num_dead: int, num_saturated: int, notes: Sequence[str]
) -> str:
    """Describe slices: how many, their largest magnitudes, and how many are dead or saturated."""
    if not len(numel):
        return "no slices"
    most = int(numel.max())
    known = [one for one in absmax.tolist() if not math.isnan(one)]
    ends = f"[{number(min(known))} .. {number(max(known))}]" if known else "nothing finite"
    said = [f"{plural(len(numel), 'slice')} of {plural(most, 'element')}: absmax {ends}"]
    said += [f"{count(num_dead)} dead"] if num_dead else []
    said += [f"{count(num_saturated)} saturated"] if num_saturated else []
    return ", ".join([*said, *notes])


def show_slices(
    title: str,
    numbers: Mapping[str, Sequence[float]],
    *,
    names: Sequence[str] = SLICE_COLUMNS,
    order: Sequence[int] | None = None,
    limit: int | None = MOST_ROWS,
    way_out: str = "",
) -> Page:
    """Show a line per slice: per channel, per unit, per token.

    Args:
        title: what they are.
        numbers: as ``slices.as_dict()``.
        names: keys of ``numbers``.
        order: places of the slices; as they are by default.
        limit: most lines; ``None`` for all.
        way_out: what shows all of it.
    """
    order = range(len(numbers["numel"])) if order is None else order
    cells = [(str(n), *(_cell(name, numbers[name][n]) for name in names)) for n in order]
    if not cells:
        return Page(Line(title, "head"))
    names, right = ("slice", *names), "r" * (1 + len(names))
    grid = Grid(cells, names, right, title=title, limit=limit, noun="slice", way_out=way_out)
    return Page(grid)


def _cell(name: str, value: float) -> str:
    if name == "numel":
        return count(int(value))
    if name in ("zeros", "saturated"):
        return NONE if value != value else share(round(value * (1 << 40)), 1 << 40)
    return number(value)
