"""Hands the rows of ``tt.Stats`` to the thread that writes, and moves them out of memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torchtap.core.shared_state import new_lock
from torchtap.runs.store.mapped_rows import MappedRows
from torchtap.runs.store.queue import ByteQueue, MeasuredRows
from torchtap.runs.store.statistics_files import EVERY, measured_in, phases_of
from torchtap.stats.series import Series
from torchtap.stats.sink import PATIENCE


class RowsFeed:
    """Hands on the rows of the steps that have ended, each once, and again where more of it came.

    The training's thread hands over what has come in :data:`EVERY` steps, and the thread that
    writes what has come in a second. Rows that were handed on stay readable, mapped from a file
    without a name beside the run.

    Args:
        series: asks for what was measured; ``None`` where nothing measures.
        ended: asks for the same of steps that have ended, from any thread.
        queue: to the thread that writes.
        folder: of the attempt.
    """

    def __init__(
        self,
        series: Callable[[], Series] | None,
        ended: Callable[[], Series | None] | None,
        queue: ByteQueue,
        folder: Path | None,
    ) -> None:
        self._series = series
        self._ended = ended
        self._queue = queue
        self._rows = None if folder is None else MappedRows(folder)
        self._lock = new_lock()  # The collector may close a watch under it.
        self._handed: dict[str, int] = {}
        self._num_closed = self._num_handed = 0
        self._last_closed = -1

    def close_step(self, step: int) -> None:
        """A step has ended; the rows of the last ones are handed on where they are enough."""
        self._last_closed = step
        self._num_closed += 1
        if self._num_closed - self._num_handed >= EVERY:
            self.hand_over()

    def hand_over(self, running: int | None = None) -> None:
        """Hand on the rows of all steps that have ended.

        Args:
            running: a step that has not, of which the rows are handed on as they are now; when it
                has ended they are handed on again, and those count.
        """
        if self._series is None or self._rows is None:
            return
        with self._lock:
            self._num_handed = self._num_closed
            for phase, one in phases_of(self._series()):
                self._hand_ended(phase, one)
                has_come = running is not None and running > self._last_closed
                if has_come and running in one.rows.after(self._handed.get(phase)):
                    self._queue.put(MeasuredRows(measured_in(one, phase, [running])))

    def hand_over_ended(self) -> None:
        """Hand on the rows of steps that have ended, if any, to the thread that writes: by itself.

        It never waits for long for a thread that may be waiting for it: then it comes again.
        """
        if self._ended is None or self._rows is None or self._num_handed == self._num_closed:
            return
        # The training's thread may hold the lock and wait for the very thread that asks here.
        if not self._lock.acquire(timeout=PATIENCE):
            return
        try:
            num_closed, series = self._num_closed, self._ended()
            if series is None or not all(self._try(*one) for one in phases_of(series)):
                return
            self._num_handed = num_closed
        finally:
            self._lock.release()

    def _try(self, phase: str, series: Series) -> bool:
        if not series.lock.acquire(timeout=PATIENCE):
            return False
        try:
            self._hand_ended(phase, series)
        finally:
            series.lock.release()
        return True

    def _hand_ended(self, phase: str, series: Series) -> None:
        assert self._rows is not None
        came = series.rows.after(self._handed.get(phase))
        new = [step for step in came if step <= self._last_closed]
        if new:
            self._handed[phase] = new[-1]
        # Steps that were handed on already come again where a late backward added to them.
        steps = sorted({*new, *series.rows.take_changed()})
        if steps:
            series.rows.move(steps, self._rows.empty, self._rows.alone)
            self._queue.put(MeasuredRows(measured_in(series, phase, steps)))
