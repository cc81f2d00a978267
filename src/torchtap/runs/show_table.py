"""Tables of statistics as text: which steps they show, and what was cut from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torchtap.core.absence import reason_lines
from torchtap.core.text import (
    NONE,
    Cell,
    columns,
    count,
    middle,
    number,
    paint,
    plural,
    shape,
    share,
    size,
    wrap,
)
from torchtap.runs.columns import is_left, text_of

if TYPE_CHECKING:
    from torchtap.runs.table import Row, Table
    from torchtap.stats.custom.slices import Slices

MOST_ROWS = 40
_ENDLESS = 1 << 20
_IN_PYTHON = "table.to_text(limit=None, width=None)"


# ---------------------------------------------------------------------- a row per site


def show_table(
    table: Table,
    *,
    limit: int | None = MOST_ROWS,
    width: int | None = 100,
    color: bool = False,
    way_out: str = _IN_PYTHON,
) -> str:
    """One line per site with the columns of the table.

    Args:
        table: any table.
        limit: most lines; ``None`` for all.
        width: columns of the terminal, to which names and shapes are shortened; ``None`` for whole
            ones. With many columns the table is wider all the same.
        color: paint it.
        way_out: what shows all of it.
    """
    rows = list(table)
    if not rows:
        return "The table is empty."
    names = _shown_columns(table)
    dtypes = list(dict.fromkeys(row.dtype for row in rows))
    cells = [
        (str(row.site), *(_cell(row, name, several=len(dtypes) > 1) for name in names))
        for row in rows
    ]
    align = "l" + "".join("l" if is_left(name) else "r" for name in names)
    elastic = {0: 24, **{1 + place: _least(name) for place, name in enumerate(names)}}
    elastic = {place: least for place, least in elastic.items() if least}
    lines = _laid_out(cells, ("site", *names), align, elastic, limit, width, color, way_out)
    title = paint(_title(table, dtypes), "head", color=color)
    return "\n".join([title, "", *lines, *_reasons(table, names, color=color)])


def _least(name: str) -> int:
    """To how many characters a column may be shortened; 0 where not at all."""
    from torchtap.runs.table import ROW_COLUMNS
    from torchtap.stats.names import NAMES

    if name == "shape":
        return 12
    return 0 if name in NAMES or name in ROW_COLUMNS else 24


def _shown_columns(table: Table) -> list[str]:
    """With the step of each site, where they differ: one title cannot say it."""
    is_mixed = len({row.step for row in table}) > 1
    return [*(["step"] if is_mixed and "step" not in table.columns else []), *table.columns]


def _cell(row: Row, name: str, *, several: bool) -> str | Cell:
    if name == "shape" and several:
        return f"{row.dtype} {shape(row.shape)}"
    return text_of(row, name)


def _title(table: Table, dtypes: Sequence[str]) -> str:
    one_dtype = f", all {dtypes[0]}" if len(dtypes) == 1 else ""
    start = f"{plural(len(table), 'site')}{one_dtype}, {size(sum(row.nbytes for row in table))}"
    steps, shown = table.steps, {row.step for row in table}
    asked = f" ({', '.join(table.notes)})" if table.notes else ""
    if len(steps) == 1:
        return f"{start}, step {steps[0]}{asked}"
    start = f"{start} in {plural(len(steps), 'step')}{asked}"
    if table.is_merged:
        return f"{start}. Shown: all of them together, {steps[0]} to {steps[-1]}."
    if len(shown) > 1:
        return f"{start}. Shown: the last step of each site, which differ: see step."
    return f"{start}. Shown: step {steps[-1]}, the last."


def _reasons(table: Table, names: Sequence[str], *, color: bool) -> list[str]:
    """Why there is no number where one could be expected."""
    said: dict[str, list[str]] = {}
    for row in table:
        if "update_ratio" in names and row.site.port == "update" and row.stats.why_no_ratio:
            reason = f"no update_ratio: {row.stats.why_no_ratio}"
            said.setdefault(reason, []).append(str(row.site))
        for name, why in _missing(row, names).items():
            said.setdefault(f"no {name}: {why}", []).append(str(row.site))
    lines = [line for why, sites in said.items() for line in reason_lines(why, sites)]
    return [paint(line, "dim", color=color) for line in ["", *lines] if lines]


def _missing(row: Row, names: Sequence[str]) -> Mapping[str, str]:
    from torchtap.stats.names import missing_of

    wanted = {*names, *(name.rpartition(".")[0] for name in names)}
    return {name: why for name, why in missing_of(row.stats).items() if name in wanted}


# ---------------------------------------------------------------------- a row per slice

SLICE_COLUMNS = ("numel", "mean", "std", "absmax", "l2", "zeros", "saturated")
"""What is shown of each slice where nothing is chosen."""


def show_slice_table(
    where: str,
    slices: Slices,
    *,
    names: Sequence[str] = SLICE_COLUMNS,
    order: Sequence[int] | None = None,
    limit: int | None = MOST_ROWS,
    color: bool = False,
    way_out: str = _IN_PYTHON,
) -> str:
    """One line per slice: per channel, per unit, per token.

    Args:
        where: of which site, for the title.
        slices: what ``tt.stats.along`` found.
        names: keys of ``slices.as_dict()``.
        order: places of the slices; as they are by default.
        limit: most lines; ``None`` for all.
        color: paint it.
        way_out: what shows all of it.
    """
    title = paint(f"{where}: {slices!r}", "head", color=color)
    numbers = slices.as_dict()
    order = range(len(slices.rows)) if order is None else order
    cells = [(str(n), *(_slice_cell(name, numbers[name][n]) for name in names)) for n in order]
    if not cells:
        return title
    align = "r" * (1 + len(names))
    lines = _laid_out(cells, ("slice", *names), align, {}, limit, None, color, way_out)
    return "\n".join([title, "", *lines])


def _slice_cell(name: str, value: float) -> str:
    if name == "numel":
        return count(int(value))
    if name in ("zeros", "saturated"):
        return NONE if value != value else share(round(value * (1 << 40)), 1 << 40)
    return number(value)


# ---------------------------------------------------------------------- cut


def _laid_out(
    cells: Sequence[Sequence[str | Cell]],
    headers: Sequence[str],
    align: str,
    elastic: Mapping[int, int],
    limit: int | None,
    width: int | None,
    color: bool,
    way_out: str,
) -> list[str]:
    """The lines, and below them what was cut and what shows it."""
    text, whole = (
        columns(cells, headers, align, room, elastic=elastic, color=color)
        for room in (width or _ENDLESS, _ENDLESS)
    )
    head, *lines = text.split("\n")
    front, left_out, back = middle(lines, limit)
    cut = [f"{plural(left_out, headers[0])} left out"] if left_out else []
    cut += ["long texts shortened"] if text.count("…") > whole.count("…") else []
    between = [f"… {plural(left_out, f'more {headers[0]}')} …"] if left_out else []
    said = ["", *wrap(f"Cut: {', '.join(cut)}. {way_out} shows all.")] if cut else []
    return [head, *front, *between, *back, *said]
