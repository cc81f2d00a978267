"""What is saved for backward, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtap.view.cells import NONE, clean, columns, count, size
from torchtap.view.text import tree

if TYPE_CHECKING:
    from torchtap.saving import SavedReport

_HEADERS = ("module", "type", "saved", "bytes", "params", "shared", "dtype", "largest")


def show_saved(report: SavedReport, *, color: bool = False) -> str:
    """Modules with what they keep; totals below."""
    labels = tree([row.path for row in report.rows])
    cells = [
        (
            label,
            row.type,
            count(row.count),
            size(row.nbytes) if row.nbytes else NONE,
            count(row.num_params + row.num_casts) if row.num_params + row.num_casts else NONE,
            count(row.num_duplicates) if row.num_duplicates else NONE,
            ", ".join(row.dtypes) or NONE,
            row.largest or NONE,
        )
        for label, row in zip(labels, report.rows, strict=True)
    ]
    table = columns(cells, _HEADERS, "lerrrrll", elastic={0: 16, 1: 9, 7: 12, 6: 8}, color=color)
    lines = [
        f"Saved for backward by {clean(report.model)}",
        "",
        table,
        "",
        f"Held until backward  {size(report.nbytes)} in {count(report.count)} tensors, "
        f"the peak of what is saved; each memory once",
        f"Parameters among it  {size(report.param_nbytes)}, which are there anyway",
    ]
    reasons = dict.fromkeys(entry.reason for entry in report.absent)
    for reason in reasons:
        number = sum(entry.reason == reason for entry in report.absent)
        lines.append(f"{count(number)} not seen: {reason}")
    return "\n".join(lines)
