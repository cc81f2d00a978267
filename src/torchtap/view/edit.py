"""Edits and what they do, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtap.core.text import columns, number, plural

if TYPE_CHECKING:
    from torchtap.editing import Edit
    from torchtap.sweeping import Sweep

_MOST_LINES = 30
_MOST_ROWS = 100


def show_edit(edit: Edit) -> str:
    """What it is, and where it happened how often."""
    state = "on" if edit.is_open else "closed"
    head = f"Edit {', '.join(edit.names)} ({state}, step {edit.current_step})"
    width = max((len(site) for site in edit.calls), default=0)
    lines = [
        f"{site:<{width}}  {_times(sum(calls.values()), len(calls))}"
        for site, calls in edit.calls.items()
    ]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"... and {len(lines) - _MOST_LINES} more sites"]
    absent = [f"not {entry}" for entry in edit.absent[:5]]
    return "\n  ".join([head, *(lines or ["nothing yet"]), *absent])


def _times(fired: int, calls: int) -> str:
    times = "once" if fired == 1 else f"{fired:,} times" if fired else "never"
    return times if fired == calls == 1 else f"{times} in {plural(calls, 'call')}"


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
