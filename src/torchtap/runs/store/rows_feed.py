"""Hands the rows of ``tt.Stats`` to the thread that writes, some steps at a time."""

from __future__ import annotations

from collections.abc import Callable

from torchtap.runs.store.queue import ByteQueue, Statistics
from torchtap.runs.store.statistics import EVERY, measured_since
from torchtap.stats.series import Series


class RowsFeed:
    """Hands on the rows of the steps that have ended, each once.

    Args:
        series: asks for what was measured; ``None`` where nothing measures.
        queue: to the thread that writes.
    """

    def __init__(self, series: Callable[[], Series] | None, queue: ByteQueue) -> None:
        self._series = series
        self._queue = queue
        self._handed: set[int] = set()
        self._num_closed = 0
        self._last_closed = -1

    def close_step(self, step: int) -> None:
        """A step has ended; the rows of the last ones are handed on where they are enough."""
        self._last_closed = step
        self._num_closed += 1
        if self._num_closed % EVERY == 0:
            self.hand_over()

    def hand_over(self) -> None:
        """Hand on the rows of all steps that have ended."""
        if self._series is None:
            return
        series = self._series()
        running = {step for step in series.steps if step > self._last_closed}
        for measured in measured_since(series, self._handed | running):
            self._queue.put(Statistics(measured))
            self._handed.update(measured.steps)
