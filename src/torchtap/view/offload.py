"""What offloading gained and cost, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchtap.view.cells import NONE, columns, count, size
from torchtap.view.text import tree

if TYPE_CHECKING:
    from torchtap.advising import OffloadAdvice
    from torchtap.moving.tally import OffloadReport

_MOST_ROWS = 40
_HEADERS = ("module", "saved", "bytes", "packed", "shared", "kept", "why kept")


def show_offload(report: OffloadReport) -> str:
    """One line per module, totals below."""
    rows = [row for row in report.rows if row.count][:_MOST_ROWS]
    labels = tree([row.path for row in rows])
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
        for label, row in zip(labels, rows, strict=True)
    ]
    table = columns(cells, _HEADERS, "lrrrrrl", elastic={0: 16, 6: 12})
    more = len(report.rows) - len(rows)
    lines = [table, *([f"... and {more} more modules"] if more > 0 else []), ""]
    kept = ", ".join(f"{size(nbytes)} {why}" for why, nbytes in report.kept_nbytes.items())
    moved = ", ".join(f"{size(nbytes)} to {name}" for name, nbytes in report.moved_nbytes.items())
    lines += [
        f"Saved    {size(report.seen_nbytes)}, of which {size(report.shared_nbytes)} twice",
        f"Kept     {kept or 'nothing'}",
        f"Moved    {moved or 'nothing'}, where they take {size(report.small_nbytes)}",
        f"Fetched  {size(report.fetched_nbytes)}; {count(report.num_ahead)} were there when asked "
        f"for, {count(report.num_waited)} were waited for",
        f"Peak     {size(report.peak_nbytes)} in memory; plain {size(report.plain_peak_nbytes)}",
        f"Time     {report.blocked_seconds:.3f} s waited in {report.step_seconds:.3f} s"
        + ("" if math.isnan(report.slow_down) else f": {report.slow_down:.2f}x"),
    ]
    return "\n".join([*lines, *(f"Note: {note}." for note in report.notes)])


def show_line(report: OffloadReport) -> str:
    """All in one line."""
    moved = ", ".join(f"{size(nbytes)} to {name}" for name, nbytes in report.moved_nbytes.items())
    waited = report.blocked_seconds / report.step_seconds if report.step_seconds else 0.0
    return (
        f"offload: {size(report.seen_nbytes)} saved, {moved or 'nothing moved'}, peak "
        f"{size(report.peak_nbytes)} of {size(report.plain_peak_nbytes)}, waited {waited:.0%}"
    )


def show_gradients(errors: Mapping[str, float]) -> str:
    """The worst first."""
    worst = sorted(errors.items(), key=lambda item: -item[1])[:20]
    exact = sum(error == 0 for error in errors.values())
    head = f"Gradients of {len(errors)} parameters: {exact} equal to the bit"
    lines = [f"{name}  {error:.2e}" for name, error in worst if error]
    return "\n  ".join([head, *lines])


_ADVICE = ("module", "type", "saved", "movable", "compute", "free time", "wait alone", "offload")


def show_advice(advice: OffloadAdvice) -> str:
    """One line per module, the advice below."""
    rows = advice.rows[:_MOST_ROWS]
    labels = tree([row.path for row in rows])
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
        f"Saved   {size(advice.nbytes)} without parameters; the budget is {size(advice.budget)}",
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
