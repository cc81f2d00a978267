"""A sink that hands what ``tt.Stats`` measured to a logger, at the end of each step."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from torchtap.core.errors import InputError
from torchtap.core.record import Record
from torchtap.integrations.logged_step import (
    LoggedStep,
    Wanted,
    live_step,
    phases_of,
    steps_of_run,
)
from torchtap.runs.about import About
from torchtap.runs.run import Run
from torchtap.runs.select import Where
from torchtap.stats.named_numbers import NAMES, further_of

if TYPE_CHECKING:
    from torchtap.stats.series import Series

NUMBERS = ("mean", "std", "absmax", "nonfinite", "update_ratio")
"""Statistics that are handed on where none are chosen."""


class StatisticsLog(ABC):
    """Hands statistics and logged numbers of each closed step to a logger.

    It takes no records: ``tt.Stats`` beside it measures as if it were alone. What the logger
    raises disables the log, and is raised by ``w.step()`` or ``w.close()``; the training goes on.

    Args:
        names: of the numbers, see :class:`~torchtap.integrations.TensorBoardLog`.
        every: of how many steps one is handed on.
        histograms: of how many steps the histograms of one are.
    """

    keeps = takes = reads_backward = False

    def __init__(self, names: Sequence[str], every: int, histograms: int) -> None:
        if isinstance(names, str):
            names = [names]
        for name, value, least in (("every", every, 1), ("histograms", histograms, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} is {value!r}; expected a whole number from {least}.")
        self._wanted = Wanted(tuple(names), every, histograms)
        self._about: About | None = None
        self._pending: dict[int, dict[str, Any]] = {}
        self._handed: dict[str, int] = {}
        self._closed = -1

    # ------------------------------------------------------------------ as a sink

    def begin(self, about: About) -> None:
        """A watch begins.

        Raises:
            InputError: no ``tt.Stats`` measures beside it, or there is no such number.
        """
        kind = type(self).__name__
        if about.series is None:
            raise InputError(
                f"{kind} hands on what tt.Stats measures, and there is none: "
                f"to=[tt.Stats(), {kind}(...)]."
            )
        series = about.series()
        _refuse_unknown(self._wanted.names, series)
        self._about, self._pending, self._closed = about, {}, -1
        self._handed = {}
        self._new_steps(series)  # Of an earlier watch with the same tt.Stats.
        self._open(about.meta().rank if about.meta().world_size > 1 else None)

    def take(self, record: Record) -> None:
        """Leave it: no record is given to a sink that takes none."""
        del record

    def close_step(self, step: int) -> None:
        """Hand on what came since the last time, at every so many steps."""
        if self._about is None:
            return
        self._closed = step
        self._note_scalars(self._about, step)
        if step % self._wanted.every == 0:
            with ExitStack() as failed:
                failed.callback(self._stop)
                self._hand_on(self._about)
                failed.pop_all()

    def close(self) -> None:
        """Hand on the rest, also of the step that was not closed."""
        about = self._about
        if about is None:
            return
        with ExitStack() as ending:
            ending.callback(self._stop)
            newest = about.scalars.newest
            if newest is not None and newest > self._closed:
                self._note_scalars(about, newest)
            self._hand_on(about)

    def _stop(self) -> None:
        self._about = None
        self._end()

    def _note_scalars(self, about: About, step: int) -> None:
        logged = about.scalars.at(step)
        if logged:
            self._pending[step] = logged

    def _hand_on(self, about: About) -> None:
        assert about.series is not None
        series = about.series()
        measured = {one for one in self._new_steps(series) if one % self._wanted.every == 0}
        pending, self._pending = self._pending, {}
        now = time.time()
        for step in sorted({*measured, *pending}):
            scalars = {name: float(value) for name, value in pending.get(step, {}).items()}
            self._hand_on_step(live_step(step, now, series, self._wanted, scalars))

    def _new_steps(self, series: Series) -> list[int]:
        """Return the steps of which rows came since the last time, and note them as handed on."""
        steps = []
        for phase, one in phases_of(series):
            came = one.rows.after(self._handed.get(phase))
            if came:
                self._handed[phase] = came[-1]
            steps += came
        return steps

    # ------------------------------------------------------------------ of a finished run

    def write(self, run: Run, where: Where = None) -> int:
        """Hand the same series of a finished run to the logger.

        Histograms are handed on of the steps of which the run has them.

        Args:
            run: in memory or opened.
            where: which sites, as in :meth:`Run.records`; all by default.

        Returns:
            how many steps it handed on.

        Raises:
            SiteError: nothing was recorded or measured that fits ``where``.
            InputError: there is no such number.
        """
        _refuse_unknown(self._wanted.names, run.series)
        self._open(None)
        num_steps = 0
        try:
            for logged in steps_of_run(run, where, self._wanted):
                self._hand_on_step(logged)
                num_steps += 1
        finally:
            self._end()
        return num_steps

    # ------------------------------------------------------------------ of each logger

    @abstractmethod
    def _open(self, rank: int | None) -> None:
        """A training or a run begins; ``rank`` where several processes train."""

    @abstractmethod
    def _hand_on_step(self, logged: LoggedStep) -> None:
        """Hand one step to the logger."""

    @abstractmethod
    def _end(self) -> None:
        """Nothing more comes: have it written."""


def _refuse_unknown(names: Sequence[str], series: Series) -> None:
    further = [statistic.name for statistic in series.statistics]
    for name in names:
        if name not in NAMES:
            further_of(name, further)
