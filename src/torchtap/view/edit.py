"""An edit as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtap.editing import Edit

_MOST_LINES = 30


def show_edit(edit: Edit) -> str:
    """What it is, and where it happened how often."""
    state = "on" if edit.is_open else "closed"
    head = f"Edit {', '.join(edit.names)} ({state}, step {edit.current_step})"
    width = max((len(site) for site in edit.calls), default=0)
    lines = [
        f"{site:<{width}}  {sum(calls.values())} times in {len(calls)} calls"
        for site, calls in edit.calls.items()
    ]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"... and {len(lines) - _MOST_LINES} more sites"]
    absent = [f"not {entry}" for entry in edit.absent[:5]]
    return "\n  ".join([head, *(lines or ["nothing yet"]), *absent])
