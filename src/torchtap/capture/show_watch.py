"""A watch as a page: what it taps, what it has kept, and what that costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torchtap.core.absence import Absence, show_absent
from torchtap.core.plan import Plan
from torchtap.core.printed_page import Grid, Line, Page
from torchtap.core.record import said_steps
from torchtap.core.text import clean, count, number, plural, size
from torchtap.runs.run import Run
from torchtap.stats.rows import ROW_WIDTH

_ROW_BYTES = 8 * ROW_WIDTH


@dataclass(frozen=True, slots=True)
class WatchState:
    """The state of a watch.

    Attributes:
        plan: what is tapped.
        step: that is running; ``None`` once it is closed.
        is_paused: whether it records nothing now.
        sinks: names of their classes.
        run: what was kept; ``None`` where no sink keeps anything.
        num_closed: how many steps were closed.
        num_calls: how often the model was called.
        num_made: steps that optimizers made.
        seconds: that closing them took.
        absent: what was selected and not seen.
    """

    plan: Plan
    step: int | None
    is_paused: bool
    sinks: Sequence[str]
    run: Run | None
    num_closed: int
    num_calls: int
    num_made: int
    seconds: float
    absent: Sequence[Absence]


def show_watch(watch: WatchState) -> Page:
    """Show a watch: what it sees, what it keeps, what closing a step took, what is absent."""
    state = "closed" if watch.step is None else f"open, step {watch.step}"
    state += ", paused" if watch.is_paused else ""
    rows = [
        ("tapped", _tapped(watch.plan)),
        ("where", ", ".join(watch.plan.where) or "*"),
        ("sinks", ", ".join(watch.sinks)),
        *_held(watch.run),
    ]
    rows += _in_one_step(watch)
    if watch.num_closed:
        each = number(1e3 * watch.seconds / watch.num_closed)
        steps = plural(watch.num_closed, "step")
        rows.append(("closing", f"{steps}, {each} ms each; the hooks are not timed"))
    grid = Grid([(name, clean(text)) for name, text in rows], elastic={1: 40})
    head = Line(f"Watch of {watch.plan.model}: {state}", "head")
    return Page(head, grid, *show_absent(watch.absent))


def _in_one_step(watch: WatchState) -> list[tuple[str, str]]:
    """Say so where a training went on and no step was closed."""
    if watch.num_closed or watch.num_made < 2:
        return []
    calls = plural(watch.num_calls, "call")
    made = f"{calls} and {watch.num_made} steps of optimizers"
    return [("closing", f"w.step() was never called: {made} are one step here")]


def _tapped(plan: Plan) -> str:
    ports = Counter(port for tap in plan.taps for port in tap.ports)
    said = ", ".join(f"{port} {count(num)}" for port, num in ports.items())
    return f"{plural(len(plan.taps), 'module')}{f': {said}' if said else ''}"


def _held(run: Run | None) -> list[tuple[str, str]]:
    """Return the rows that say how much the sinks keep, which is also the memory they take."""
    if run is None:
        return [("kept", "nothing: the sinks hand their records on")]
    series, steps = run.series, run.steps
    rows = []
    if len(run):
        rows.append(("kept", f"{plural(len(run), 'record')}, {size(run.nbytes)}"))
    if series.steps:
        own = len(series.steps) * len(series.sites)
        measured = f"{plural(len(series.sites), 'site')} in {plural(len(series.steps), 'step')}"
        rows.append(("measured", f"{measured}, numbers of {size(own * _ROW_BYTES)}"))
    if run.scalar_names:
        rows.append(("logged", ", ".join(run.scalar_names)))
    if not steps:
        return [*rows, ("kept", "nothing yet")]
    _, _, said = said_steps(steps).partition(" ")
    return [*rows, ("steps", said)]
