"""A plan as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtap.plan import Plan

_MOST_LINES = 40


def show_plan(plan: Plan) -> str:
    """One line per tapped module, then what cannot be tapped."""
    lines = [
        f"{tap.path or '.'} ({tap.type}): {', '.join(map(_port, tap.filters.items()))}"
        for tap in plan.taps
    ]
    if len(lines) > _MOST_LINES:
        rest = len(lines) - _MOST_LINES
        lines = [*lines[:_MOST_LINES], f"... and {rest} more modules"]
    marks = [f"{pattern} (a tt.mark, if one is reached)" for pattern in plan.unmatched]
    absent = [f"not {entry}" for entry in plan.absent]
    head = f"Plan for {plan.model}: {', '.join(plan.where)}, {len(plan.taps)} modules"
    return "\n  ".join([head, *lines, *marks, *absent])


def _port(item: tuple[str, object]) -> str:
    port, chosen = item
    include = getattr(chosen, "include", ("",))
    exclude = getattr(chosen, "exclude", ())
    text = port if "" in include else f"{port}[{', '.join(include)}]"
    return f"{text} without [{', '.join(exclude)}]" if exclude else text
