"""Tables of statistics as text: which steps they show, and what was cut from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchtap.core.absence import reason_rows
from torchtap.core.printed_page import Grid, Line, Listed, Page, Part
from torchtap.core.text import Cell, plural, shape, size
from torchtap.runs.tables.columns import ROW_COLUMNS, Row, is_left, text_of
from torchtap.stats.named_numbers import NAMES, missing_of

MOST_ROWS = 40
WAY_OUT = "table.to_text(limit=None, width=None)"


def show_table(
    rows: Sequence[Row],
    columns: Sequence[str],
    steps: Sequence[int],
    notes: Sequence[str],
    *,
    is_merged: bool,
    limit: int | None = MOST_ROWS,
    way_out: str = WAY_OUT,
) -> Page:
    """Return one line per site.

    Args:
        rows: the sites.
        columns: what is shown of each.
        steps: the steps in which any of the sites has a value.
        notes: what else is to be known.
        is_merged: whether the statistics are over these steps together.
        limit: most lines; ``None`` for all.
        way_out: what shows all of it.
    """
    if not rows:
        return Page(Line("The table is empty."))
    # One title cannot say the step of each site where they differ.
    is_mixed = len({row.step for row in rows}) > 1
    names = [*(["step"] if is_mixed and "step" not in columns else []), *columns]
    dtypes = list(dict.fromkeys(row.dtype for row in rows))
    cells = [
        (str(row.site), *(_cell(row, name, several=len(dtypes) > 1) for name in names))
        for row in rows
    ]
    elastic = {0: 24, **{1 + place: _least(name) for place, name in enumerate(names)}}
    grid = Grid(
        cells,
        ("site", *names),
        "l" + "".join("l" if is_left(name) else "r" for name in names),
        title=_title(rows, steps, notes, dtypes, is_merged=is_merged),
        elastic={place: least for place, least in elastic.items() if least},
        limit=limit,
        noun="site",
        way_out=way_out,
    )
    return Page(grid, *_reasons(rows, names))


def _least(name: str) -> int:
    """To how many characters a column may be shortened; 0 where not at all."""
    if name == "shape":
        return 12
    return 0 if name in NAMES or name in ROW_COLUMNS else 24


def _cell(row: Row, name: str, *, several: bool) -> str | Cell:
    if name == "shape" and several:
        return f"{row.dtype} {shape(row.shape)}"
    return text_of(row, name)


def _title(
    rows: Sequence[Row],
    steps: Sequence[int],
    notes: Sequence[str],
    dtypes: Sequence[str],
    *,
    is_merged: bool,
) -> str:
    one_dtype = f", all {dtypes[0]}" if len(dtypes) == 1 else ""
    start = f"{plural(len(rows), 'site')}{one_dtype}, {size(sum(row.nbytes for row in rows))}"
    asked = f" ({', '.join(notes)})" if notes else ""
    if len(steps) == 1:
        return f"{start}, step {steps[0]}{asked}"
    start = f"{start} in {plural(len(steps), 'step')}{asked}"
    if is_merged:
        return f"{start}. Shown: all of them together, {steps[0]} to {steps[-1]}."
    if len({row.step for row in rows}) > 1:
        return f"{start}. Shown: the last step of each site, which differ: see step."
    return f"{start}. Shown: step {steps[-1]}, the last."


def _reasons(rows: Sequence[Row], names: Sequence[str]) -> list[Part]:
    """Why there is no number where one could be expected."""
    said: dict[str, list[str]] = {}
    for row in rows:
        if "update_ratio" in names and row.site.kind.compared_with and row.stats.why_no_ratio:
            reason = f"no update_ratio: {row.stats.why_no_ratio}"
            said.setdefault(reason, []).append(str(row.site))
        for name, why in _missing(row, names).items():
            said.setdefault(f"no {name}: {why}", []).append(str(row.site))
    return [Listed(reason_rows(said), tone="dim")] if said else []


def _missing(row: Row, names: Sequence[str]) -> Mapping[str, str]:
    wanted = {*names, *(name.rpartition(".")[0] for name in names)}
    return {name: why for name, why in missing_of(row.stats).items() if name in wanted}
