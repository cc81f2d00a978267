"""What offloading gained and cost, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torchtap.core.outline import outline
from torchtap.core.text import NONE, columns, count, plural, size, wrap

if TYPE_CHECKING:
    from torchtap.advising import OffloadAdvice
    from torchtap.moving.tally import OffloadReport

_MOST_ROWS = 40
_HEADERS = ("module", "saved", "bytes", "packed", "shared", "kept", "why kept")


def show_offload(report: OffloadReport) -> str:
    """One line per module, totals below."""
    rows = [row for row in report.rows if row.count]
    notes = [line for note in report.notes for line in wrap(f"Note: {note}.", rest="  ")]
    if not rows:
        return "\n".join(["Nothing was saved for backward while offloading was on.", *notes])
    shown = rows[:_MOST_ROWS]
    labels = _labels([row.path for row in shown])
    cells = [
        (
            label,
            count(row.count),
            size(row.seen),
            size(row.packed) if row.packed else NONE,
            size(row.shared) if row.shared else NONE,
            size(sum(row.kept.values())) if row.kept else NONE,
            ", ".join(row.kept),
        )
        for label, row in zip(labels, shown, strict=True)
    ]
    table = columns(cells, _HEADERS, "lrrrrrl", elastic={0: 16, 6: 12})
    more = len(rows) - len(shown)
    lines = [table, *([f"... and {more} more modules"] if more > 0 else []), ""]
    return "\n".join([*lines, *_totals(report), *notes])


def _totals(report: OffloadReport) -> list[str]:
    kept = ", ".join(f"{size(nbytes)} {why}" for why, nbytes in report.kept_nbytes.items())
    twice = f", of which {size(report.shared_nbytes)} twice" if report.shared_nbytes else ""
    lines = [f"Saved    {size(report.seen_nbytes)}{twice}", f"Kept     {kept or 'nothing'}"]
    if not report.packed_nbytes:
        return [*lines, "Moved    nothing"]
    ahead, waited = count(report.num_ahead), count(report.num_waited)
    back = f"; {ahead} were there when asked for, {waited} were waited for"
    return [
        *lines,
        f"Moved    {_moved(report, 'nothing')}"
        + (f", where they take {size(report.small_nbytes)}" if report.moved_nbytes else ""),
        f"Fetched  {size(report.fetched_nbytes)}{back if report.fetched_nbytes else ''}",
        f"Peak     {size(report.peak_nbytes)} in memory; plain {size(report.plain_peak_nbytes)}",
        f"Time     {report.blocked_seconds:.3f} s waited{_threads(report)} in "
        f"{report.step_seconds:.3f} s"
        + ("" if math.isnan(report.slow_down) else f": {report.slow_down:.2f}x"),
    ]


def _moved(report: OffloadReport, none: str) -> str:
    moved = [f"{size(nbytes)} to {name}" for name, nbytes in report.moved_nbytes.items()]
    return ", ".join(moved) or none


def _threads(report: OffloadReport) -> str:
    """Several threads can wait for more than the time that passes."""
    is_more = report.blocked_seconds > report.step_seconds > 0
    return ", all threads together," if is_more else ""


def show_line(report: OffloadReport) -> str:
    """All in one line."""
    if report.packed_nbytes:
        peak = f", peak {size(report.peak_nbytes)} of {size(report.plain_peak_nbytes)}"
    else:
        peak = ""
    share = report.blocked_seconds / report.step_seconds if report.step_seconds else 0.0
    waited = f"{share:.0%}" if share <= 1 else f"{report.blocked_seconds:.3f} s{_threads(report)}"
    notes = f"; {plural(len(report.notes), 'note')} in the report" if report.notes else ""
    return (
        f"offload: {size(report.seen_nbytes)} saved, {_moved(report, 'nothing moved')}{peak}, "
        f"waited {waited.rstrip(',')}{notes}"
    )


def _labels(paths: Sequence[str]) -> list[str]:
    return outline(["" if path == "." else path for path in paths])


def show_gradients(errors: Mapping[str, float], *, packed_nbytes: int) -> str:
    """The worst first."""
    worst = sorted(errors.items(), key=lambda item: -item[1])[:20]
    exact = sum(error == 0 for error in errors.values())
    head = f"Gradients of {len(errors)} parameters: {exact} equal to the bit"
    if not packed_nbytes:
        head += "; but nothing was offloaded, so this proves nothing"
    lines = [f"{name}  {error:.2e}" for name, error in worst if error]
    return "\n  ".join([head, *lines])


_ADVICE = ("module", "type", "saved", "movable", "compute", "free time", "wait alone", "offload")


def show_advice(advice: OffloadAdvice) -> str:
    """One line per module, the advice below."""
    rows = advice.rows[:_MOST_ROWS]
    labels = _labels([row.path for row in rows])
    cells = [
        (
            label,
            row.type,
            size(row.nbytes),
            size(row.movable_nbytes) if row.movable_nbytes else NONE,
            f"{row.seconds * 1e3:.1f} ms",
            f"{row.available * 1e3:.1f} ms" if row.movable_nbytes else NONE,
            f"{row.wait * 1e3:.1f} ms" if row.movable_nbytes else NONE,
            "yes" if row.is_moved else "",
        )
        for label, row in zip(labels, rows, strict=True)
    ]
    more = len(advice.rows) - len(rows)
    speeds = f"{size(int(advice.write_speed))}/s, fetch {size(int(advice.fetch_speed))}/s"
    lines = [
        columns(cells, _ADVICE, "lerrrrrl", elastic={0: 16, 1: 9}),
        *([f"... and {more} more modules"] if more > 0 else []),
        "",
        f"Saved   {size(advice.nbytes)} without parameters and buffers; the budget is "
        f"{size(advice.budget)}",
        f"Disk    write {speeds}, in {advice.folder}",
    ]
    if not advice.where:
        return "\n".join([*lines, "Advice  nothing to offload: it fits"])
    where = ", ".join(repr(path) for path in advice.where)
    return "\n".join(
        [
            *lines,
            f"Stays   {size(advice.kept_nbytes)}, and up to "
            f"{size(advice.budget - advice.kept_nbytes)} on its way",
            f"Waits   {advice.wait_seconds * 1e3:.1f} ms in a step of "
            f"{advice.step_seconds * 1e3:.1f} ms",
            f"Advice  where=[{where}], max_bytes={advice.max_bytes}",
        ]
    )
