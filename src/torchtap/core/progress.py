"""Progress on stderr, for work that takes longer than two seconds."""

from __future__ import annotations

import sys
import threading
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_QUIET_SECONDS = 2.0
_IS_ANY_SHOWN: ContextVar[bool] = ContextVar("torchtap.progress", default=False)


class Progress:
    """A line that says what is done; a timer shows it, so short work never imports rich.

    Work inside of other work is not shown: two lines would overwrite each other.

    Args:
        doing: what takes long.
        total: how many parts it has; ``None`` where that is not known.
        wanted: whether to show it; by default if stderr is a terminal.
    """

    def __init__(self, doing: str, total: int | None = None, *, wanted: bool | None = None) -> None:
        self._doing = doing
        self._total = total
        self._num_done = 0
        self._wanted = sys.stderr.isatty() if wanted is None else wanted
        self._bar: Bar | None = None
        self._timer = threading.Timer(_QUIET_SECONDS, self._show)
        self._timer.daemon = True
        self._token: Token[bool] | None = None

    def __enter__(self) -> Progress:
        self._wanted = self._wanted and not _IS_ANY_SHOWN.get()
        if self._wanted:
            self._token = _IS_ANY_SHOWN.set(True)
            self._timer.start()
        return self

    def advance(self, doing: str) -> None:
        """One more part is done."""
        self._doing = doing
        self._num_done += 1
        if self._bar is not None:
            self._update(self._bar)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            MofNCompleteColumn,
            Progress as Bar,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        parts = [] if self._total is None else [MofNCompleteColumn(), TimeRemainingColumn()]
        # The user's code runs meanwhile: rich must not put objects of its own in place of
        # sys.stdout and sys.stderr, and what is shown may not be read as markup.
        bar = Bar(
            SpinnerColumn(),
            TextColumn("torchtap: {task.description}", markup=False),
            *parts,
            TimeElapsedColumn(),
            console=console,
            # It goes from a terminal; a file gets its last state, once and plain.
            transient=console.is_terminal or console.is_jupyter,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        bar.add_task(self._doing, total=self._total)
        bar.start()
        self._bar = bar
        self._update(bar)

    def _update(self, bar: Bar) -> None:
        task = bar.task_ids[0]
        bar.update(task, completed=self._num_done, description=self._doing)

    def __exit__(self, *_: object) -> None:
        if not self._wanted:
            return
        if self._token is not None:
            _IS_ANY_SHOWN.reset(self._token)
        self._timer.cancel()
        self._timer.join()
        if self._bar is not None:
            self._bar.stop()
