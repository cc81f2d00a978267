"""A figure in a notebook that follows a training while its cell runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from torchtap.core.closable import Closable
from torchtap.core.errors import CaptureError, InputError
from torchtap.core.printed import Printed
from torchtap.core.printed_page import Line, Page
from torchtap.plot.extras import figure_class
from torchtap.plot.over_steps import series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torchtap.runs.run import Run
    from torchtap.runs.select import Where

_PAUSE = 0.5
"""Seconds between two pictures, at least."""
_SHARE = 0.1
"""Share of the time that drawing may take."""


class Followed(Protocol):
    """The parts of a watch that a live figure needs."""

    @property
    def run(self) -> Run:
        """Return the run that is drawn."""

    def after_step(self, function: Callable[[int], object]) -> Callable[[], None]:
        """Call a function at the end of each step, until the result is called."""


class Live(Closable):
    """The result of :func:`live`: a context manager, which draws the last picture when it closes.

    Attributes:
        num_drawn: pictures that were shown.
        seconds: that drawing them took.
        failure: why the last one could not be drawn; ``None`` where it could.
    """

    def __init__(self, watch: Followed, draw: Callable[[Run], Figure]) -> None:
        self._run, self._draw = watch.run, draw
        self._handle: Any = None
        self._next = 0.0
        self.num_drawn = 0
        self.seconds = 0.0
        self.failure: Exception | None = None
        self._stop = watch.after_step(self._follow)
        self._shows = _is_notebook()
        if not self._shows:  # There is nothing to do at the end of steps.
            self._stop()

    @property
    def figure(self) -> Figure:
        """Return the figure of the run as it is now."""
        return self._draw(self._run)

    def _follow(self, step: int) -> None:
        if time.perf_counter() >= self._next:
            self._show()

    def _show(self) -> None:
        began = time.perf_counter()
        try:
            self._put(self.figure)
            self.failure = None
            self.num_drawn += 1
        except Exception as error:  # noqa: BLE001 - a picture stops no training
            self.failure = error
        took = time.perf_counter() - began
        self.seconds += took
        # The first picture takes longer: what draws is loaded for it.
        self._next = began + took + max(_PAUSE, took / _SHARE if self.num_drawn > 1 else 0)

    def _put(self, shown: Figure | Printed) -> None:
        display: Any = import_module("IPython.display").display
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)

    def _finish(self, *, raising: bool) -> None:
        if not self._shows:
            return
        self._stop()
        self._show()
        if self.failure is not None:
            self._put(_NoPicture(self.failure))

    def _closed(self) -> CaptureError:
        return CaptureError("This live figure is closed; call tt.plot.live again to go on.")


class _NoPicture(Printed):
    """Says in the place of a picture why there is none."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    def _page(self) -> Page:
        kind = type(self._failure).__name__
        return Page(Line(f"No picture: {kind}: {self._failure}", "bad"))


def live(
    watch: Followed,
    where: Where = "*",
    name: str = "std",
    *,
    draw: Callable[[Run], Figure] | None = None,
) -> Live:
    """Show a figure in a notebook that follows a training while its cell runs.

    It is drawn at the end of a step, at most twice a second, and so seldom that it takes no more
    than 10 % of the time. It changes nothing of the training and raises nothing into it: where no
    picture can be drawn, that is said in its place when it is closed. Where there is no notebook,
    nothing is shown and nothing is done; ``figure`` is the picture of the moment everywhere.

    Args:
        watch: whose run is drawn; among its sinks is ``tt.Stats()``.
        where: sites, as of :func:`series`.
        name: of the number, likewise.
        draw: another figure, a function of the run:
            ``lambda run: tt.plot.gradient_flow(run)``.

    Returns:
        a context manager; leaving it draws the last picture.

    Raises:
        InputError: ``watch`` is something else.
        CaptureError: the watch is closed, or keeps nothing that could be drawn.
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Linear(2, 2)
        >>> with tt.watch(model, to=tt.Stats()) as w, tt.plot.live(w, "*:output") as figure:
        ...     for _ in range(5):
        ...         _ = model(torch.randn(4, 2))
        ...         w.step()
        >>> figure.num_drawn  # There is no notebook here.
        0
    """
    if not _is_followed(watch):
        raise InputError(
            f"tt.plot.live got a {type(watch).__name__}; expected a watch, as of tt.watch(...)."
        )
    figure_class()
    return Live(watch, partial(series, where=where, name=name) if draw is None else draw)


def _is_followed(watch: object) -> bool:
    """Return whether a value is a watch. Its class is asked: reading ``run`` may raise."""
    return all(hasattr(type(watch), part) for part in ("run", "after_step"))


def _is_notebook() -> bool:
    """Return whether IPython shows pictures here; in a terminal it would print each as a text."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and type(shell).__name__ != "TerminalInteractiveShell"
