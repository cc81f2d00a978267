"""``torchtap top``: a run that goes on, in the terminal of a second process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchtap.core.errors import RunError
from torchtap.core.printed_page import BLANK, Line, wants_color
from torchtap.core.text import WIDTH, count
from torchtap.runs.store.layout import attempts_in, ranks_in
from torchtap.show.live.controls import HELP, Controls
from torchtap.show.live.screen import (
    Shown,
    header_height,
    page_of_frame,
    sorted_entries,
)
from torchtap.show.live.view import Entry, Frame, View, selected

if TYPE_CHECKING:
    from rich.text import Text

INTERVAL = 1.0
"""Seconds from one frame to the next."""
_FEWEST_COLUMNS = 40
_TICK = 0.25
"""Seconds after which the size of the terminal is looked at again."""


def open_view(path: Path, *, wait: bool, say: Callable[[str], None]) -> View:
    """Open a run to follow it.

    Args:
        path: of the run.
        wait: until it is there.
        say: tells that it is waited for.

    Raises:
        RunError: there is nothing, or something else than a run.
    """
    has_said = False
    while True:
        try:
            return View(path)
        except FileNotFoundError as error:
            if not wait:
                raise RunError(
                    f"{path} is not there. Give the folder of tt.Disk or a file of run.save, or "
                    f"--wait for a run that is about to begin."
                ) from error
        except RunError as error:
            if not wait or not _may_begin(path):
                more = " --wait waits for it." if _may_begin(path) else ""
                raise RunError(f"{error}{more}") from error
        if not has_said:
            say(f"waiting for a run at {path}")
        has_said = True
        time.sleep(_TICK)


def once(view: View, shown: Shown, write: Callable[[str], None], width: int) -> Frame:
    """Print one frame."""
    view.update()
    frame = view.frame()
    entries = selected(frame, view.meta, shown.where)
    page = page_of_frame(frame, entries, shown)
    write(page.text(color=wants_color(), width=width))
    return frame


def printed(view: View, shown: Shown, write: Callable[[str], None]) -> Frame:
    """Print a frame whenever a step has come, until the run is over: where no terminal is."""
    frame = once(view, shown, write, WIDTH)
    while not frame.state.is_over:
        time.sleep(INTERVAL)
        view.update()
        new = view.frame()
        if new.num_new or new.state.name != frame.state.name:
            entries = selected(new, view.meta, shown.where)
            page = page_of_frame(new, entries, shown)
            write("\n" + page.text(color=False, width=WIDTH))
        frame = new
    return frame


def interactive(view: View, controls: Controls, rows: int | None) -> Frame:
    """Show frames on the terminal until ``q`` is pressed."""
    from rich.console import Console
    from rich.live import Live

    from torchtap.show.live.keys import Keys

    console = Console()
    view.update()
    frame, size, due = view.frame(), console.size, time.monotonic() + INTERVAL
    finite: Frame | None = None
    with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        is_new = True
        while not controls.has_quit:
            if is_new or console.size != size:
                size = console.size
                shown = _pick(view, frame, finite, controls)
                page, most = _fitted(view, shown, controls, size.width, size.height, rows)
                live.update(_text(page), refresh=True)
            pressed = keys.read(min(_TICK, due - time.monotonic()))
            for key in pressed:
                controls.press(key, page=most[0], most=most[1])
            if controls.is_finite and finite is None:
                finite = view.frame(finite=True)
            elif not controls.is_finite:
                finite = None
            is_new = bool(pressed)
            if time.monotonic() >= due:
                view.update()
                frame, due, is_new = view.frame(), time.monotonic() + INTERVAL, True
    return frame


def _pick(view: View, frame: Frame, finite: Frame | None, controls: Controls) -> Frame:
    """Return the frame that was asked for."""
    if controls.is_finite and not view.has_finite:
        controls.is_finite = False  # All is finite: that frame is the present one.
    return finite if controls.is_finite and finite is not None else frame


def _fitted(
    view: View, frame: Frame, controls: Controls, width: int, height: int, rows: int | None
) -> tuple[str, tuple[int, int]]:
    """Lay a frame out for a terminal; return rows that are seen, and how many there are, too."""
    width = max(width - 1, _FEWEST_COLUMNS)
    entries: Sequence[Entry] = selected(frame, view.meta, controls.where)
    ordered = sorted_entries(entries, controls.sort)
    shown = Shown(None, 0, controls.sort, controls.where, controls.is_finite)
    room = max(height - header_height(frame, shown, width) - 3, 1)
    seen = room if rows is None else min(rows, room)
    controls.first = max(0, min(controls.first, len(ordered) - seen))
    shown.rows, shown.first = seen, controls.first
    shown.footer = _footer(controls, len(ordered), seen)
    lines = page_of_frame(frame, entries, shown).text(color=wants_color(), width=width)
    return "\n".join(lines.splitlines()[: height - 1]), (seen, len(ordered))


def _footer(controls: Controls, many: int, seen: int) -> list[Line]:
    if controls.draft is not None:
        error = f"   {controls.error}" if controls.error else ""
        said = f"filter: {controls.draft}_{error}   (enter keeps it, escape does not)"
        return [BLANK, Line(said, "head")]
    last = min(controls.first + seen, many)
    where = f", filter {' '.join(controls.where)}" if controls.where else ""
    place = f"{count(controls.first + 1)}-{count(last)} of {count(many)}" if many else "none"
    return [BLANK, Line(f"{place} by {controls.sort}{where}: {HELP}", "dim")]


def _text(page: str) -> Text:
    from rich.text import Text

    return Text.from_ansi(page, no_wrap=True, overflow="crop", end="")


def _may_begin(path: Path) -> bool:
    """Return whether a run may be about to begin in a folder: it has no attempt so far."""
    if not path.is_dir() or attempts_in(path):
        return False
    is_empty = not any(path.iterdir()) or (path / "run.json").exists() or bool(ranks_in(path))
    return is_empty and not any(attempts_in(one) for one in ranks_in(path).values())


def is_terminal() -> bool:
    """Return whether a person sits there: keys come in, and what goes out is seen."""
    return sys.stdin.isatty() and sys.stdout.isatty()
