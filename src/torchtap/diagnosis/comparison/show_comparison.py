"""A comparison as text in 100 columns, and as HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchtap.core.printed_page import BLANK, Grid, Line, Listed, Page, Part
from torchtap.core.text import NONE, Cell, plural
from torchtap.diagnosis.comparison.result import Comparison, Row

_MOST_ROWS = 24
_MOST_PATHS = 8
HEADERS = ("module", "port", "call", "total", "inherited", "added", "tolerance", "cause")


def show_comparison(found: Comparison) -> Page:
    """Return the verdict, the first difference, a table of the rows, and the notes."""
    parts: list[Part] = [*_verdict(found)]
    if found.rows:
        rows = [row_cells(row, is_first=row is found.first) for row in found.rows]
        grid = Grid(rows, HEADERS, "llrrrrrl", elastic={0: 24}, limit=_MOST_ROWS, noun="difference")
        parts += [BLANK, grid]
    parts += [*_only(found.only_a, found.names[0]), *_only(found.only_b, found.names[1])]
    if found.notes:
        parts += [BLANK, Listed([("", note) for note in found.notes])]
    return Page(*parts)


def _verdict(found: Comparison) -> list[Part]:
    one, two = found.names
    if found.first is not None:
        step = f"in step {found.first.step} " if found.steps else ""
        where = f"{one} and {two} differ, first {step}at {_place(found.first)}"
        return [Line(where, "bad", ""), Line(found.first.text, "", "")]
    if found.same:
        beyond = " beyond rounding" if found.rows else ""
        steps = _steps(found)
        return [Line(f"{one} and {two} do not differ{beyond}{steps}.", "good", "")]
    return [Line(f"{one} and {two} differ.", "bad", "")]


def _steps(found: Comparison) -> str:
    """Return `` in the 3 steps that both have; the candidate has 2 more``."""
    if not found.steps:
        return ""
    count = plural(len(found.steps), "step")
    more = [
        f"{name} has {alone} more"
        for name, alone in zip(found.names, found.steps_alone, strict=True)
        if alone
    ]
    return f" in the {count} that both have; {', '.join(more)}" if more else f" in {count}"


def _place(row: Row) -> str:
    cause = f": {row.cause}" if row.cause else ""
    return f"{row.name}:{row.port} (call {row.call}, {row.phase}){cause}"


def row_cells(row: Row, *, is_first: bool = False) -> list[str | Cell]:
    """Return the cells of a row, one for each of ``HEADERS``."""
    tone = "bad" if is_first else "" if row.is_beyond else "dim"
    return [Cell(text, tone) for text in row_texts(row)]


def row_texts(row: Row) -> list[str]:
    """Return a row as texts, one for each of ``HEADERS``."""
    return [row.name, row.port, str(row.call), *map(_distance, _numbers(row)), row.cause or NONE]


def _numbers(row: Row) -> tuple[float, float, float, float]:
    return row.total, row.inherited, row.added, row.tolerance


def _distance(value: float) -> str:
    if math.isnan(value):
        return NONE
    if value == 0 or math.isinf(value):
        return "0" if value == 0 else "inf"
    return f"{value:.2g}" if 1e-3 <= value < 100 else f"{value:.1e}".replace("e-0", "e-")


def _only(paths: Sequence[str], name: str) -> list[Part]:
    if not paths:
        return []
    more = f" and {len(paths) - _MOST_PATHS} more" if len(paths) > _MOST_PATHS else ""
    said = ", ".join(paths[:_MOST_PATHS]) + more
    return [BLANK, Line(f"Only in {name}, {plural(len(paths), 'path')}: {said}", "", "  ")]
