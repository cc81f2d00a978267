"""Hands the rows of ``tt.Stats`` to the thread that writes, and moves them out of memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torchtap.runs.store.mapped_rows import MappedRows
from torchtap.runs.store.queue import ByteQueue, Statistics
from torchtap.runs.store.statistics_files import EVERY, measured_in, phases_of
from torchtap.stats.series import Series


class RowsFeed:
    """Hands on the rows of the steps that have ended, each once.

    Rows that were handed on stay readable, mapped from a file without a name beside the run.

    Args:
        series: asks for what was measured; ``None`` where nothing measures.
        queue: to the thread that writes.
        folder: of the attempt.
    """

    def __init__(
        self, series: Callable[[], Series] | None, queue: ByteQueue, folder: Path | None
    ) -> None:
        self._series = series
        self._queue = queue
        self._rows = None if folder is None else MappedRows(folder)
        self._handed: dict[str, int] = {}
        self._num_closed = 0
        self._last_closed = -1

    def close_step(self, step: int) -> None:
        """A step has ended; the rows of the last ones are handed on where they are enough."""
        self._last_closed = step
        self._num_closed += 1
        if self._num_closed % EVERY == 0:
            self.hand_over()

    def hand_over(self, running: int | None = None) -> None:
        """Hand on the rows of all steps that have ended.

        Args:
            running: a step that has not, of which the rows are handed on as they are now; when it
                has ended they are handed on again, and those count.
        """
        if self._series is None or self._rows is None:
            return
        for phase, one in phases_of(self._series()):
            came = one.rows.after(self._handed.get(phase))
            steps = [step for step in came if step <= self._last_closed]
            if steps:
                one.rows.move(steps, self._rows.empty, self._rows.alone)
                self._queue.put(Statistics(measured_in(one, phase, steps)))
                self._handed[phase] = steps[-1]
            if running is not None and running in came and running > self._last_closed:
                self._queue.put(Statistics(measured_in(one, phase, [running])))
