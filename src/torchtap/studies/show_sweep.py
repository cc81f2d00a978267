"""TODO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtap.core.text import columns, number

if TYPE_CHECKING:
    from torchtap.sweeping import Sweep


_MOST_ROWS = 100


def show_sweep(sweep: Sweep) -> str:
    """One line per site and edit."""
    names = list(sweep.baseline)
    head = ["site", "edit", *(cell for name in names for cell in (name, "change"))]
    base = [
        "(unedited)",
        "",
        *(cell for name in names for cell in (number(sweep.baseline[name]), "")),
    ]
    rows = [
        [
            str(row.site),
            row.edit,
            *(
                cell
                for name in names
                for cell in (number(row.values[name]), f"{row.change[name]:+.4g}")
            ),
        ]
        for row in sweep.rows[:_MOST_ROWS]
    ]
    lines = [columns([base, *rows], head, "ll" + "r" * (len(head) - 2), elastic={0: 20, 1: 12})]
    more = len(sweep.rows) - len(rows)
    lines += [f"... and {more} more rows"] if more else []
    lines += [f"Note: {sweep.note}."] if sweep.note else []
    return "\n".join(lines)
