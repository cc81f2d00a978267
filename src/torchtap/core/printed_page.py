"""The parts of a report: lines, tables and lists, shown as text or as HTML."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TypeVar

from torchtap.core.printed import Printed
from torchtap.core.printed_tokens import Tokens
from torchtap.core.text import (
    WIDTH,
    Cell,
    breadth,
    clean,
    elide,
    elide_apart,
    elide_end,
    plural,
    wrap,
)

_TERMINAL = {"head": "bold", "dim": "dim", "bad": "bold red", "good": "green"}
_STYLE = {
    "head": "font-weight:bold",
    "dim": "opacity:0.7",
    "bad": "font-weight:bold;color:#c00",
    "good": "color:#080",
}
_LEFT = "text-align:left;white-space:pre-wrap"
_RIGHT = "text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums"
_ENDLESS = 1 << 20
T = TypeVar("T")


def middle(items: Sequence[T], limit: int | None) -> tuple[Sequence[T], int, Sequence[T]]:
    """Return the beginning, how many are left out, and the end."""
    if limit is None or len(items) <= limit:
        return items, 0, ()
    front = -(-limit // 2)
    back = limit - front
    return items[:front], len(items) - limit, items[len(items) - back :]


def wants_color() -> bool:
    """Return whether stdout may have colours: it is a terminal, and there is no ``NO_COLOR``."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def paint(text: str, tone: str, *, color: bool) -> str:
    """Return ``text`` in the colour of ``tone`` where colour is wanted."""
    if not (color and text and tone in _TERMINAL):
        return text
    from rich.color import ColorSystem
    from rich.style import Style

    return Style.parse(_TERMINAL[tone]).render(text, color_system=ColorSystem.STANDARD)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text.

    Args:
        text: what it says.
        tone: as of a :class:`Cell`.
        rest: what stands before each further line; the line is as long as it is where ``None``.
    """

    text: str
    tone: str = ""
    rest: str | None = None

    def lines(self, width: int, *, color: bool) -> list[str]:
        """Return the line as text."""
        said = [clean(self.text)]
        if self.rest is not None:
            said = wrap(self.text, width, rest=self.rest)
        return [paint(line, self.tone, color=color) for line in said]

    def html(self) -> str:
        """Return the line as an HTML paragraph; a blank line is none."""
        style = f"margin:0;white-space:pre-wrap;{_STYLE.get(self.tone, '')}".rstrip(";")
        return f'<p style="{style}">{_safe(self.text)}</p>' if self.text else ""


@dataclass(frozen=True, slots=True)
class Listed:
    """Texts that are too long for columns, each with what it is about.

    Args:
        rows: what a text is about (may be empty), and the text.
        title: stands above them; empty for none.
        limit: most rows; ``None`` for all.
        noun: what a row is.
        tone: of all of it.
        more: stands below, where the caller has left something out.
        is_below: each text stands below what it is about, after a blank line.
    """

    rows: Sequence[tuple[str, str]]
    title: str = ""
    limit: int | None = None
    noun: str = "row"
    tone: str = ""
    more: str = ""
    is_below: bool = False

    def lines(self, width: int, *, color: bool) -> list[str]:
        """Return the list as lines of text."""
        front, left_out, back = middle(self.rows, self.limit)
        said = [clean(self.title)] if self.title else []
        said += [line for row in front for line in self._row(row, width)]
        said += [f"  {_gap(left_out, self.noun)}"] if left_out else []
        said += [line for row in back for line in self._row(row, width)]
        said += [f"  {clean(self.more)}"] if self.more else []
        return [paint(line, self.tone, color=color) for line in said]

    def _row(self, row: tuple[str, str], width: int) -> list[str]:
        head, text = row
        if self.is_below:
            return ["", *wrap(f"{head}:", width), *wrap(text, width, first="  ", rest="  ")]
        return wrap(f"{head}: {text}" if head else text, width, first="  ", rest="    ")

    def html(self) -> str:
        """Return the list as an HTML table: each text, and what it is about where that is said."""
        has_heads = any(head for head, _ in self.rows)
        rows = [row if has_heads else row[1:] for row in self.rows]
        table = Grid(rows, title=self.title, limit=self.limit, noun=self.noun).html()
        return table + Line(self.more, self.tone).html()


@dataclass(frozen=True, slots=True)
class Grid:
    """A table.

    Where it would be wider than the page, first the gaps become single blanks, then the elastic
    columns are elided in the middle; without elastic columns it is as wide as it is.

    Args:
        rows: texts or cells, one per column.
        headers: one per column, or none at all.
        align: one letter per column: ``l``, ``r``, or ``e`` (left, elided at its end).
        title: stands above it; empty for none.
        elastic: column -> the fewest characters to which it may shrink.
        limit: most rows, the middle of more is left out; ``None`` for all.
        noun: what a row is.
        way_out: what shows all of it; where given, what was cut is said below.
        indent: what stands before each line.
    """

    rows: Sequence[Sequence[str | Cell]]
    headers: Sequence[str] = ()
    align: str = ""
    title: str = ""
    elastic: Mapping[int, int] = field(default_factory=dict)
    limit: int | None = None
    noun: str = "row"
    way_out: str = ""
    indent: str = ""

    def lines(self, width: int, *, color: bool) -> list[str]:
        """Return the table as lines of text."""
        table = [[_cell(one) for one in row] for row in self.rows]
        head = [[Cell(header, "head") for header in self.headers]] if self.headers else []
        wide = [
            max(breadth(one.text) for one in column) for column in zip(*head, *table, strict=True)
        ]
        room = width - len(self.indent)
        gap = 1 if self.elastic and sum(wide) + 2 * (len(wide) - 1) > room else 2
        own = _shrink(wide, room - gap * (len(wide) - 1), self.elastic)
        front, left_out, back = middle(table, self.limit)

        def laid_out(rows: Sequence[Sequence[Cell]]) -> list[str]:
            return [
                self.indent + _row(row, own, self._align, " " * gap, color=color) for row in rows
            ]

        title = [paint(clean(self.title), "head", color=color), ""] if self.title else []
        between = [self.indent + _gap(left_out, self.noun)] if left_out else []
        is_short = any(
            breadth(one.text) > most
            for row in (*front, *back)
            for one, most in zip(row, own, strict=True)
        )
        cut = self._cut(left_out, width, is_short=is_short)
        shown = self._told_apart([*front, *back], own)
        lines = laid_out(shown)
        above, below = lines[: len(front)], lines[len(front) :]
        return [*title, *laid_out(head), *above, *between, *below, *cut]

    def _told_apart(
        self, rows: Sequence[Sequence[Cell]], wide: Sequence[int]
    ) -> list[Sequence[Cell]]:
        """Return rows whose elastic cells are short, and differ where they differed before."""
        columns = [list(column) for column in zip(*rows, strict=True)]
        for place in self.elastic if rows else ():
            if self._align[place] != "e":
                texts = elide_apart([one.text for one in columns[place]], wide[place])
                cells = zip(texts, columns[place], strict=True)
                columns[place] = [Cell(text, one.tone) for text, one in cells]
        return list(zip(*columns, strict=True))

    @property
    def _align(self) -> str:
        return self.align or "l" * max(map(len, self.rows), default=0)

    def _cut(self, left_out: int, width: int, *, is_short: bool) -> list[str]:
        cut = [f"{plural(left_out, self.noun)} left out"] if left_out else []
        cut += ["long texts shortened"] if is_short else []
        if not (cut and self.way_out):
            return []
        return ["", *wrap(f"Cut: {', '.join(cut)}. {self.way_out} shows all.", width)]

    def html(self) -> str:
        """Return HTML with whole texts and no more rows than as text; nothing without rows."""
        if not self.rows:
            return ""
        front, left_out, back = middle(self.rows, self.limit)
        span = len(self._align)
        body = [self._html_row(row) for row in front]
        if left_out:
            gap = _safe(_gap(left_out, self.noun))
            body.append(f'<tr><td colspan="{span}" style="{_LEFT}">{gap}</td></tr>')
        body += [self._html_row(row) for row in back]
        head = "".join(
            f'<th scope="col" style="{_side(side)}">{_safe(one)}</th>'
            for one, side in zip(self.headers, self._align, strict=False)
        )
        title = f'<caption style="{_LEFT}">{_safe(self.title)}</caption>' if self.title else ""
        head = f"<thead><tr>{head}</tr></thead>" if head else ""
        return f"<table>{title}{head}<tbody>{''.join(body)}</tbody></table>"

    def _html_row(self, row: Sequence[str | Cell]) -> str:
        first, *others = (_cell(one) for one in row)
        head = f'<th scope="row" style="{_side(self._align[0])}">{escape(first.text)}</th>'
        cells = []
        for one, side in zip(others, self._align[1:], strict=False):
            style = ";".join(filter(None, (_side(side), _STYLE.get(one.tone))))
            cells.append(f'<td style="{style}">{escape(one.text)}</td>')
        return f"<tr>{head}{''.join(cells)}</tr>"


BLANK = Line("")
Part = Line | Listed | Grid | Tokens


class Page:
    """A report: its parts from top to bottom.

    Example:
        >>> print(Page(Line("Two sites:"), Grid([("fc", "12")], ("site", "bytes"), "lr")).text())
        Two sites:
        site  bytes
        fc       12
    """

    __slots__ = ("parts",)

    def __init__(self, *parts: Part) -> None:
        self.parts = parts

    def text(self, *, color: bool = False, width: int | None = WIDTH) -> str:
        """Return the page as text.

        Args:
            color: paint it.
            width: columns of the terminal; ``None`` for whole texts.
        """
        room = _ENDLESS if width is None else width
        return "\n".join(line for part in self.parts for line in part.lines(room, color=color))

    def html(self) -> str:
        """Return HTML for a notebook: every text is escaped, nothing is loaded or run."""
        return f"<div>{''.join(part.html() for part in self.parts)}</div>"


def page_of(value: Printed) -> Page:
    """Return the page that a value prints as."""
    return value._page()


def _gap(left_out: int, noun: str) -> str:
    return f"… {plural(left_out, f'more {noun}')} …"


def _safe(text: str) -> str:
    return escape(clean(text))


def _side(side: str) -> str:
    return _RIGHT if side == "r" else _LEFT


def _cell(cell: str | Cell) -> Cell:
    return Cell(clean(cell)) if isinstance(cell, str) else Cell(clean(cell.text), cell.tone)


def _shrink(wide: Sequence[int], room: int, elastic: Mapping[int, int]) -> list[int]:
    """Take the excess from the widest elastic column, one character at a time."""
    own = list(wide)
    while sum(own) > room:
        able = [place for place, least in elastic.items() if own[place] > least]
        if not able:
            break
        own[max(able, key=lambda place: own[place] / elastic[place])] -= 1
    return own


def _row(cells: Sequence[Cell], wide: Sequence[int], align: str, gap: str, *, color: bool) -> str:
    parts = []
    for cell, room, side in zip(cells, wide, align, strict=True):
        text = elide_end(cell.text, room) if side == "e" else elide(cell.text, room)
        blank = " " * (room - breadth(text))
        painted = paint(text, cell.tone, color=color)
        parts.append(blank + painted if side == "r" else painted + blank)
    return gap.join(parts).rstrip()
