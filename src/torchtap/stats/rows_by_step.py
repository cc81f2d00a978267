"""Keeps rows of 16 numbers: of every step, one for each site."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from torchtap.stats.algebra import Rows
from torchtap.stats.rows import NUM_TENSORS, blank_rows, merged_row
from torchtap.stats.site_summary import SiteSummary

_ASKED = 8
"""Sites whose steps are looked up one by one, before those of all are."""
NewRows = Callable[[int, int], Rows]
"""``(steps, sites)``: an array for their rows."""
_BLANK: list[float] = blank_rows().tolist()


class Snapshot:
    """Shows the rows of all steps at one moment; nothing is copied, and nothing changes them later.

    Args:
        steps: ``int64``, ascending.
        rows: of each step, one for each site known by then; as one array where there is one.
        num_sites: how many there are now.
    """

    __slots__ = ("num_sites", "rows", "steps")

    def __init__(
        self, steps: NDArray[np.int64], rows: Rows | Sequence[Rows], num_sites: int
    ) -> None:
        self.steps, self.rows, self.num_sites = steps, rows, num_sites

    def column(self, number: int) -> NDArray[np.float64]:
        """Return a number of the 16, ``float64[steps, sites]``; 0 of sites not known in a step."""
        if isinstance(self.rows, np.ndarray):
            return self.rows[..., number]
        column_of_all = np.zeros((len(self.steps), self.num_sites))
        for own, rows in zip(column_of_all, self.rows, strict=True):
            own[: len(rows)] = rows[: self.num_sites, number]
        return column_of_all


class RowsByStep:
    """Holds the rows of every step, one for each site known by then.

    Args:
        sites: of the series, by place; there may be more later.
        lock: of the series.
    """

    def __init__(self, sites: Sequence[SiteSummary], lock: threading.RLock) -> None:
        self._sites = sites
        self._lock = lock
        self._by_step: dict[int, Rows] = {}
        self._whole: Rows | None = None
        self._new_array: NewRows = blank_rows
        self._moved: set[int] = set()
        self._changed: list[int] = []
        self._num_asked = 0
        self._is_there: tuple[list[int], NDArray[np.bool_]] | None = None

    def __contains__(self, step: int) -> bool:
        return step in self._by_step

    @property
    def steps(self) -> list[int]:
        """Return the steps in which anything was measured."""
        return sorted(self._by_step)

    # ------------------------------------------------------------------ taken

    def add(self, step: int, rows: Rows) -> None:
        """Take the rows of a new step."""
        self._by_step[step] = rows
        self._forget_what_is_there()

    def merge(self, step: int, rows: Rows) -> list[int]:
        """Merge rows into those of a step; return the places whose numbers were replaced."""
        known = self._by_step[step]
        # A copy: what was read of the step before does not change.
        merged = np.concatenate([known, blank_rows(max(len(rows) - len(known), 0))])
        replaced = []
        for place in np.flatnonzero(rows[:, NUM_TENSORS]).tolist():
            if self._sites[place].site.kind.is_replaced:
                replaced.append(place)
                merged[place] = rows[place]
            else:
                merged[place] = merged_row(merged[place].tolist(), rows[place].tolist())
        self._by_step[step] = merged
        self._forget_what_is_there()
        if step in self._moved:  # Its rows were handed on as they were before.
            self._moved.discard(step)
            self._changed.append(step)
        return replaced

    def restore(self, steps: list[int], rows: Rows) -> None:
        """Take all steps at once: rows of them, as :meth:`as_array` gave them."""
        self._by_step = dict(zip(steps, rows, strict=True))
        self._forget_what_is_there()
        # One array answers for a site in all steps at once; it holds as long as nothing is added.
        is_whole = steps == sorted(steps) and rows.ndim == 3
        self._whole = rows if is_whole and rows.shape[1] == len(self._sites) else None

    def move(self, steps: Sequence[int], new_rows: NewRows, new_array: NewRows) -> None:
        """Have the rows of some steps that have ended in other memory.

        Args:
            steps: which.
            new_rows: ``(steps, sites)`` gives an array ``float64[steps, sites, 16]`` of any
                content, for these rows.
            new_array: the same, for an array of all rows from now on.
        """
        with self._lock:
            self._new_array = new_array
            self._by_step.update(zip(steps, self._rows_of(steps, new_rows), strict=True))
            self._moved.update(steps)

    def take_changed(self) -> list[int]:
        """Return steps that were moved and then merged with more, each once."""
        with self._lock:
            changed, self._changed = self._changed, []
            return changed

    # ------------------------------------------------------------------ read

    def at(self, step: int, place: int) -> Rows | None:
        """Return the numbers of a site in one step; ``None`` if it was not measured there."""
        rows = self._by_step.get(step, ())
        if place >= len(rows) or not rows[place][NUM_TENSORS]:
            return None
        row: Rows = rows[place]
        return row

    def of(self, step: int) -> Rows | None:
        """Return the rows of a step, one for each site known by then; ``None`` for none."""
        return self._by_step.get(step)

    def merged(self, place: int, steps: Iterable[int] | None = None) -> list[float]:
        """Return the numbers of a site over all steps, or some."""
        rows = (self.at(step, place) for step in (self.steps if steps is None else steps))
        return reduce(merged_row, (row.tolist() for row in rows if row is not None), _BLANK)

    def steps_of(self, place: int) -> list[int]:
        """Return steps in which a site was measured."""
        if self._whole is not None:
            steps, own = self.steps, self._whole[:, place, NUM_TENSORS]
            return [steps[at] for at in np.flatnonzero(own).tolist()]
        self._num_asked += 1
        if self._is_there is None and self._num_asked <= _ASKED:
            return [step for step in self.steps if self.at(step, place) is not None]
        steps, is_there = self._is_there or self._find_what_is_there()
        # A site may have come since: nothing of it was added.
        own = is_there[place].nonzero()[0].tolist() if place < len(is_there) else []
        return [steps[at] for at in own]

    def _find_what_is_there(self) -> tuple[list[int], NDArray[np.bool_]]:
        """Return all steps, and whether each site was measured in them, ``bool[sites, steps]``."""
        with self._lock:
            shown = self.snapshot()
            is_there = np.ascontiguousarray(shown.column(NUM_TENSORS).T != 0)
            self._is_there = shown.steps.tolist(), is_there
            return self._is_there

    def _forget_what_is_there(self) -> None:
        self._is_there, self._num_asked = None, 0

    def after(self, last: int | None) -> list[int]:
        """Return steps that came after one, ascending, without looking at all of them."""
        # From the end, where the new ones are: a run of a million steps has few of them.
        return sorted(takewhile(lambda step: step != last, reversed(self._by_step)))

    def snapshot(self) -> Snapshot:
        """Return all rows as they are now."""
        with self._lock:
            steps = self.steps
            rows = [self._by_step[step] for step in steps] if self._whole is None else self._whole
            return Snapshot(np.array(steps, dtype=np.int64), rows, len(self._sites))

    def as_array(self, only: Sequence[int] | None = None) -> tuple[list[int], Rows]:
        """Return steps, and all rows as ``float64[steps, sites, 16]``, or those of some steps."""
        if only is None:
            steps = self.steps
            return steps, self._rows_of(steps, self._new_array)
        return list(only), self._rows_of(only, blank_rows)

    def _rows_of(self, steps: Sequence[int], new_rows: NewRows) -> Rows:
        num_sites = len(self._sites)  # Another thread may add to both.
        rows, blank = new_rows(len(steps), num_sites), blank_rows(num_sites)
        for number, step in enumerate(steps):
            known = self._by_step[step][:num_sites]
            rows[number] = blank
            rows[number, : len(known)] = known
        return rows
