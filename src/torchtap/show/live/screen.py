"""Lays a frame out as text: a header, and a table of the worst sites."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchtap.core.printed_page import BLANK, Grid, Line, Page, Part
from torchtap.core.text import NONE, Cell, breadth, clean, count, elide, number, plural
from torchtap.show.live.run_state import CRASHED, DONE, LIVE, seconds
from torchtap.show.live.sparks import spark
from torchtap.show.live.verdicts import Rank, said_bad, said_zeros
from torchtap.show.live.view import Entry, Frame, Origin
from torchtap.show.live.window import Scalar, magnitude_of, zeros_of

SORTS = ("worst", "module", "magnitude", "zeros", "change")
"""Orders of the table."""
_SHORT = 34
"""Characters of a site beside which there is room for the class of its module."""
_MOST_SCALARS = 3
_MOST_FINDINGS = 2
_TONES = {LIVE: "good", DONE: "good"}
_SPARK = 14


@dataclass(slots=True)
class Shown:
    """The part of a frame that is shown.

    Attributes:
        rows: of the table; ``None`` for all.
        first: the number of its first row.
        sort: one of :data:`SORTS`.
        where: patterns of the sites.
        is_finite: whether it is the last frame in which all was finite.
        footer: stands below the table.
    """

    rows: int | None = 20
    first: int = 0
    sort: str = SORTS[0]
    where: Sequence[str] = ()
    is_finite: bool = False
    footer: Sequence[Line] = field(default_factory=tuple)


def page_of_frame(frame: Frame, entries: Sequence[Entry], shown: Shown) -> Page:
    """Lay out a frame.

    Args:
        frame: which.
        entries: of it, those that are to be shown.
        shown: which rows of them.
    """
    parts: list[Part] = [*_header(frame, shown), BLANK]
    ordered = sorted_entries(entries, shown.sort)
    end = None if shown.rows is None else shown.first + shown.rows
    rows = ordered[shown.first : end]
    if rows:
        parts.append(_table(rows))
    left = len(ordered) - shown.first - len(rows)
    if not ordered:
        parts.append(Line(_why_none(frame, shown), "dim"))
    elif left > 0 and not shown.footer:
        worse = ", none of them worse" if shown.sort == SORTS[0] else ""
        parts.append(Line(f"… {plural(left, 'more site')}{worse} …", "dim"))
    return Page(*parts, *shown.footer)


def header_height(frame: Frame, shown: Shown, width: int) -> int:
    """Return how many lines stand above the first row of the table."""
    lines = sum(len(part.lines(width, color=False)) for part in _header(frame, shown))
    return lines + 2


def sorted_entries(entries: Sequence[Entry], sort: str) -> list[Entry]:
    """Sort the sites of a frame, which come the worst first."""
    if sort == "magnitude":
        return sorted(entries, key=lambda one: _last(-_magnitude(one)))
    if sort == "zeros":
        return sorted(entries, key=lambda one: _last(-_zeros(one)))
    if sort == "change":
        return sorted(entries, key=lambda one: _last(-_changed(one)))
    if sort == "module":
        return sorted(entries, key=lambda one: (one.name, one.verdict.place))
    return list(entries)


# ---------------------------------------------------------------------- header


def _header(frame: Frame, shown: Shown) -> Iterator[Line]:
    state = frame.state
    tone = _TONES.get(state.name, "bad")
    yield Line(f"{frame.path}  {frame.model}".strip(), "head")
    yield Line(f"{state.name}: {_told(frame)}" if _told(frame) else state.name, tone, "  ")
    yield from (Line(_scalar(*item)) for item in list(frame.scalars.items())[:_MOST_SCALARS])
    more = list(frame.scalars)[_MOST_SCALARS:]
    if more:
        yield Line(f"and {', '.join(map(clean, more))}", "dim", "  ")
    for note in frame.notes:
        yield Line(f"note: {note}", "dim", "  ")
    yield from _findings(frame)
    if shown.is_finite:
        yield Line(f"last finite frame: step {_step(frame.step)}; f goes back", "head")
        return
    for origin in frame.origins:
        yield Line(_said_origin(origin), "bad", "  ")
    for name, one in frame.scalars.items():
        if one.first_bad >= 0:
            yield Line(f"first not finite, {clean(name)}: step {count(one.first_bad)}", "bad")
    if frame.finite_step is not None and frame.origins:
        yield Line(f"all was finite in step {count(frame.finite_step)}", "dim")
    changes = _changes(frame)
    if changes:
        yield Line(f"since the last frame: {changes}", "dim", "  ")


def _findings(frame: Frame) -> Iterator[Line]:
    for finding in frame.findings[:_MOST_FINDINGS]:
        where = f"{finding.severity}: {finding.rule} at {clean(finding.path)}{finding.when}"
        said = f"{where}: {clean(finding.text)}"
        yield Line(said, "bad" if finding.is_alarm else "dim", "  ")
    num_left = len(frame.findings) - _MOST_FINDINGS
    if num_left > 0:
        left = f"and {plural(num_left, 'further finding')}: torchtap diagnose {frame.path}"
        yield Line(left, "dim", "  ")


def _told(frame: Frame) -> str:
    """Return the step, how fast, and what is to be said of the state."""
    state, told = frame.state, []
    if frame.step is not None:
        told.append(f"step {_step(frame.step)}")
    elif state.step is not None and state.name != CRASHED:
        told.append(f"step {_step(state.step)} runs, no statistics yet")
    if frame.steps_per_second is not None and state.name == LIVE:
        told.append(_speed(frame.steps_per_second))
    if state.silence is not None and not state.is_over:
        told.append(f"last step {seconds(state.silence)} ago")
    told.append(plural(len(frame.entries), "site"))
    told += [state.reason] if state.reason else []
    return ", ".join(told)


def _speed(per_second: float) -> str:
    return f"{per_second:.3g} steps/s" if per_second >= 0.1 else f"{60 * per_second:.2g} steps/min"


def _scalar(name: str, one: Scalar) -> str:
    values = np.array(one.values)
    shown = np.where(np.isfinite(values), values, np.inf)
    finite = values[np.isfinite(values)]
    ends = f"{number(finite.min())} .. {number(finite.max())}" if len(finite) else "nothing finite"
    many = f"last {plural(len(values), 'step')}"
    return (
        f"{elide(clean(name), 16):<10} {number(one.values[-1]):>9} "
        f"{spark(shown, 32)} {ends} ({many})"
    )


def _said_origin(origin: Origin) -> str:
    first = origin.first
    said = f"{said_bad(origin.row)} in step {count(first.step)}"
    return f"first not finite, {first.way}: {origin.entry}, {said}; {first.reason}"


def _changes(frame: Frame) -> str:
    """Say how many steps came since the frame before, and which sites got worse or better."""
    worse = [entry.text for entry in frame.entries if entry.is_worse]
    said = [plural(frame.num_new, "step")] if frame.num_new and (worse or frame.better) else []
    for name, sites in (("worse", worse), ("better", list(frame.better))):
        if sites:
            more = f" and {count(len(sites) - 2)} more" if len(sites) > 2 else ""
            said.append(f"{name}: {', '.join(sites[:2])}{more}")
    return "; ".join(said)


def _why_none(frame: Frame, shown: Shown) -> str:
    if frame.entries:
        return f"No site fits {', '.join(shown.where)!r}: there are {count(len(frame.entries))}."
    if frame.state.is_over:
        return "Nothing was measured or kept."
    return "Nothing was measured so far: statistics come a second after their step."


# ---------------------------------------------------------------------- rows


def _table(entries: Sequence[Entry]) -> Grid:
    """Lay out rows; the class of a module gives way to long sites, which name nothing once cut."""
    rows = [_row(entry) for entry in entries]
    headers = ["site", "type", "rms over steps", "rms", "change", "zeros", "why"]
    if all(breadth(entry.text) <= _SHORT for entry in entries):
        return Grid(rows, headers, "lelrrre", elastic={0: 18, 1: 6, 6: 20}, noun="site")
    rows = [[*row[:1], *row[2:]] for row in rows]
    return Grid(rows, [*headers[:1], *headers[2:]], "llrrre", elastic={0: 26, 5: 13}, noun="site")


def _row(entry: Entry) -> list[str | Cell]:
    verdict, table = entry.verdict, entry.window.table
    row = table.last[verdict.place]
    tone = _tone(verdict.rank)
    mark = "+ " if entry.is_worse else ""
    values = entry.window.magnitudes[:, verdict.place]
    return [
        Cell(entry.text, tone),
        Cell(entry.type, "dim"),
        spark(values, _SPARK, log=True),
        number(_magnitude(entry)) if not math.isnan(_magnitude(entry)) else NONE,
        _change(entry.change),
        said_zeros(row),
        Cell(mark + verdict.reason, tone),
    ]


def _tone(rank: Rank) -> str:
    return "bad" if rank is Rank.NOT_FINITE else "" if rank < Rank.FINE else "dim"


def _change(factor: float) -> str:
    """Return the magnitude as a multiple of that in the last frame, where it is another."""
    if not math.isfinite(factor) or factor <= 0 or 0.98 < factor < 1.02:
        return ""
    return f"x{factor:.3g}" if 0.01 <= factor < 1000 else f"x{number(float(f'{factor:.2g}'))}"


def _magnitude(entry: Entry) -> float:
    return float(magnitude_of(entry.window.table.last[entry.verdict.place][None])[0])


def _zeros(entry: Entry) -> float:
    return float(zeros_of(entry.window.table.last[entry.verdict.place][None])[0])


def _changed(entry: Entry) -> float:
    is_known = math.isfinite(entry.change) and entry.change > 0
    return abs(math.log10(entry.change)) if is_known else 0.0


def _last(value: float) -> float:
    """Return a key for sorting, by which NaN comes last."""
    return math.inf if math.isnan(value) else value


def _step(step: int | None) -> str:
    return "?" if step is None else count(step)
