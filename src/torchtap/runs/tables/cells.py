"""Rows of named cells, for tables that are not of a run's statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchtap.core.printed_page import Grid, Line, Listed, Page, Part
from torchtap.core.text import Cell, number


@dataclass(frozen=True, slots=True)
class Cells:
    """One row: the values of its columns by name, as items and as attributes.

    Attributes:
        values: name of a column -> text or number.
    """

    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __getattr__(self, name: str) -> Any:
        if name == "values" or name not in self.values:  # Not there yet, while it is unpickled.
            raise AttributeError(f"the row has no {name!r}")
        return self.values[name]


def sorted_cells(rows: Sequence[Any], key: str, *, largest_first: bool) -> tuple[Any, ...]:
    """Rows by one of their columns: numbers with NaN last, texts from a to z."""

    def rank(row: Cells) -> tuple[bool, Any]:
        value = row[key]
        if isinstance(value, str):
            return False, value
        return math.isnan(value), -value if largest_first else value

    return tuple(sorted(rows, key=rank))


def show_cells(
    rows: Sequence[Any], columns: Sequence[str], notes: Sequence[str], *, limit: int | None
) -> Page:
    """Return one line per row."""
    cells = [[_text(row[name]) for name in columns] for row in rows]
    kinds = [type(rows[0][name]) if rows else str for name in columns]
    elastic = {place: 20 for place, kind in enumerate(kinds) if kind is str and place == 0}
    align = "".join("l" if kind is str else "r" for kind in kinds)
    parts: list[Part] = [Grid(cells, columns, align, elastic=elastic, limit=limit)]
    if not rows:
        parts = [Line("The table is empty.")]
    if notes:
        parts.append(Listed([("", note) for note in notes], tone="dim"))
    return Page(*parts)


def _text(value: Any) -> str | Cell:
    if isinstance(value, float):
        return Cell("nan", "dim") if math.isnan(value) else number(value)
    return str(value)
