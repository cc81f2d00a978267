"""What is saved for backward, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtap.core.outline import outline
from torchtap.core.text import NONE, clean, columns, count, plural, size, wrap

if TYPE_CHECKING:
    from torchtap.saving import SavedReport, SavedRow

_HEADERS = ("module", "type", "saved", "bytes", "params", "buffers", "shared", "dtype", "largest")
_BUFFERS = _HEADERS.index("buffers")


def show_saved(report: SavedReport, *, color: bool = False) -> str:
    """Modules with what they keep; totals below."""
    head = f"Saved for backward by {clean(report.model)}"
    if not report.rows:
        return "\n".join([f"{head}: nothing", *_further(report)])
    total = f"{size(report.nbytes)} in {plural(report.count, 'tensor')}"
    lines = [
        f"Held until backward  {total}, the peak of what is saved; each memory once",
        f"Parameters among it  {size(report.param_nbytes)}, which are there anyway",
    ]
    if report.buffer_nbytes:
        lines.append(f"Buffers among it     {size(report.buffer_nbytes)}, which are there anyway")
    if report.input_nbytes:
        lines.append(
            f"Inputs of the call   {size(report.input_nbytes)} of what is held; the caller may "
            f"hold them too"
        )
    return "\n".join([head, "", _table(report, color=color), "", *lines, *_further(report)])


def _table(report: SavedReport, *, color: bool) -> str:
    headers, align, elastic = list(_HEADERS), "lerrrrrll", {0: 16, 1: 9, 8: 12, 7: 8}
    labels = outline([row.path for row in report.rows])
    cells = [_cells(label, row) for label, row in zip(labels, report.rows, strict=True)]
    if not any(row.num_buffers for row in report.rows):
        cells = [[*line[:_BUFFERS], *line[_BUFFERS + 1 :]] for line in cells]
        del headers[_BUFFERS]
        align, elastic = "lerrrrll", {0: 16, 1: 9, 7: 12, 6: 8}
    return columns(cells, headers, align, elastic=elastic, color=color)


def _cells(label: str, row: SavedRow) -> list[str]:
    params = row.num_params + row.num_casts
    return [
        label,
        row.type,
        count(row.count),
        size(row.nbytes) if row.nbytes else NONE,
        count(params) if params else NONE,
        count(row.num_buffers) if row.num_buffers else NONE,
        count(row.num_duplicates) if row.num_duplicates else NONE,
        ", ".join(row.dtypes) or NONE,
        row.largest or NONE,
    ]


def _further(report: SavedReport) -> list[str]:
    """What is not in the table, and what else there is to know."""
    reasons = dict.fromkeys(entry.reason for entry in report.absent)
    lines = []
    for reason in reasons:
        number = sum(entry.reason == reason for entry in report.absent)
        lines += wrap(f"{count(number)} not seen: {reason}")
    if report.depth is not None:
        lines.append(f"Shown to depth {report.depth}, with what is below.")
    for note in report.notes:
        lines += wrap(f"Note: {note}.", rest="  ")
    return lines
