"""Keeps what a live view shows of some sites: their last steps, their past, and their bad steps.

The memory it takes does not grow with the steps of the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from torchtap.core.site import Site
from torchtap.show.live.feeds import Ended, StepRows
from torchtap.stats.rows import NEGINF, NUM_FINITE, NUMEL, POSINF, SUM_SQUARES, ZEROS, blank_rows

Floats = NDArray[np.float64]
RECENT = 128
"""Steps of which every one is kept."""
_PAST = 128
"""Steps that stand for the whole run, at equal distances."""
_BETWEEN_COPIES = 16
NEVER = -1


@dataclass(slots=True)
class Scalar:
    """A number that is logged.

    Attributes:
        steps: the last ones.
        values: in these.
        first_bad: the first step in which it was not finite; -1 for none.
    """

    steps: deque[int] = field(default_factory=lambda: deque(maxlen=4 * RECENT))
    values: deque[float] = field(default_factory=lambda: deque(maxlen=4 * RECENT))
    first_bad: int = NEVER

    def take(self, step: int, value: float) -> None:
        """Take the number of a step."""
        self.steps.append(step)
        self.values.append(value)
        if self.first_bad == NEVER and not np.isfinite(value):
            self.first_bad = step

    def up_to(self, last: int | None) -> Scalar:
        """Return what was logged up to a step."""
        scalar = Scalar()
        for step, value in zip(self.steps, self.values, strict=True):
            if last is not None and step <= last:
                scalar.take(step, value)
        return scalar


class SiteTable:
    """Numbers of each site, one row per site, in the order in which they first came.

    Attributes:
        sites: which.
        last: the 16 numbers of the step in which each was measured last, ``float64[sites, 16]``.
        last_step: that step, ``int64[sites]``.
        first_step: the first step in which each was measured.
        first_bad: the first step in which not all elements were finite; -1 for none.
        first_bad_row: the numbers of that step.
        last_bad: the last such step; -1 for none.
        bad_phases: how many such steps there were.
    """

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self._places: dict[Site, int] = {}
        self.last = self.first_bad_row = blank_rows(0)
        self.last_step = self.first_step = np.zeros(0, dtype=np.int64)
        self.first_bad = self.last_bad = self.bad_phases = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.sites)

    def places_of(self, sites: Sequence[Site]) -> NDArray[np.intp]:
        """Return the place of each site, which is new or not."""
        for site in sites:
            if site not in self._places:
                self._places[site] = len(self.sites)
                self.sites.append(site)
        more = len(self.sites) - len(self.last_step)
        if more:
            unknown = np.full(more, NEVER, dtype=np.int64)
            self.last = np.concatenate([self.last, blank_rows(more)])
            self.first_bad_row = np.concatenate([self.first_bad_row, blank_rows(more)])
            for name in ("last_step", "first_step", "first_bad", "last_bad"):
                setattr(self, name, np.concatenate([getattr(self, name), unknown]))
            self.bad_phases = np.concatenate([self.bad_phases, np.zeros(more, dtype=np.int64)])
        return np.array([self._places[site] for site in sites], dtype=np.intp)

    def place_of(self, site: Site) -> int | None:
        """Return the place of a site; ``None`` where nothing came of it."""
        return self._places.get(site)

    def take(self, step: int, places: NDArray[np.intp], rows: Floats) -> bool:
        """Take the rows of a step; whether all of them are finite."""
        self.last[places] = rows
        self.last_step[places] = step
        self.first_step[places[self.first_step[places] == NEVER]] = step
        is_bad = rows[:, NUM_FINITE] < rows[:, NUMEL]
        bad, where = places[is_bad], np.flatnonzero(is_bad)
        if not len(bad):
            return True
        self.last_bad[bad] = step
        self.bad_phases[bad] += 1
        is_first = self.first_bad[bad] == NEVER
        self.first_bad[bad[is_first]] = step
        self.first_bad_row[bad[is_first]] = rows[where[is_first]]
        return False


class Window:
    """The steps and numbers that are kept of one feed.

    Attributes:
        table: the numbers of each site.
        steps: the last steps, ascending, twice :data:`RECENT` at most.
        scalars: numbers that are logged, by name.
        times: when the last steps ended, in seconds since 1970.
        longest: seconds between two of them, at most, over the whole run.
        num_steps: how many steps came.
        finite: a copy of all of it, as it was after the last step in which all was finite; ``None``
            while all is.
    """

    def __init__(self) -> None:
        self.table = SiteTable()
        self.steps: list[int] = []
        self.scalars: dict[str, Scalar] = {}
        self.times: deque[float] = deque(maxlen=RECENT)
        self.longest = 0.0
        self.num_steps = 0
        self.finite: Window | None = None
        self._is_finite = True
        self._recent = np.full((2 * RECENT, 0), np.nan)
        self._past = np.full((_PAST, 0), np.nan)
        self._num_past, self._stride = 0, 1

    @property
    def last_step(self) -> int | None:
        """Return the last step of which there are statistics."""
        return self.steps[-1] if self.steps else None

    @property
    def magnitudes(self) -> Floats:
        """The rms of the finite elements of each site in the last steps, ``float64[steps, sites]``.

        NaN where a site was not measured, Inf where not all of its elements were finite.
        """
        return self._recent[: len(self.steps)]

    @property
    def past(self) -> Floats:
        """Magnitudes as above, of steps at equal distances over the whole run."""
        return self._past[: self._num_past]

    def take(self, new: StepRows | Ended) -> None:
        """Take what a feed yields."""
        if isinstance(new, Ended):
            self._end(new)
        elif self.steps and new.step <= self.steps[-1]:
            self._correct(new)
        else:
            self._add(new)

    def _end(self, new: Ended) -> None:
        for name, value in new.scalars.items():
            self.scalars.setdefault(name, Scalar()).take(new.step, value)
        if new.time is not None:
            if self.times:
                self.longest = max(self.longest, new.time - self.times[-1])
            self.times.append(new.time)

    def _add(self, new: StepRows) -> None:
        is_bad = bool((new.rows[:, NUM_FINITE] < new.rows[:, NUMEL]).any())
        if is_bad and self._is_finite and self.steps:
            self._keep_finite()
        self._is_finite = not is_bad
        places = self.table.places_of(new.sites)
        self._make_room()
        if len(self.steps) == 2 * RECENT:
            self.steps = self.steps[RECENT:]
            self._recent[:RECENT] = self._recent[RECENT:]
        own = _shown(new.rows)
        at = len(self.steps)
        self._recent[at] = np.nan
        self._recent[at, places] = own
        self.steps.append(new.step)
        self.table.take(new.step, places, new.rows)
        if self.num_steps % self._stride == 0:
            self._note_past(self._recent[at])
        self.num_steps += 1

    def _keep_finite(self) -> None:
        """Keep a copy; not of every second step of a run that goes back and forth."""
        if self.finite is None or self.num_steps - self.finite.num_steps >= _BETWEEN_COPIES:
            self.finite = None
            self.finite = deepcopy(self)

    def _correct(self, new: StepRows) -> None:
        """Take rows of a step that is there, of which more came; those before the last are past."""
        places = self.table.places_of(new.sites)
        self._make_room()
        if new.step == self.steps[-1]:
            self._recent[len(self.steps) - 1, places] = _shown(new.rows)
            self.table.take(new.step, places, new.rows)

    def _make_room(self) -> None:
        more = len(self.table) - self._recent.shape[1]
        if more:
            self._recent = np.pad(self._recent, ((0, 0), (0, more)), constant_values=np.nan)
            self._past = np.pad(self._past, ((0, 0), (0, more)), constant_values=np.nan)

    def _note_past(self, own: Floats) -> None:
        if self._num_past == _PAST:  # Every second one is left, from now on of every second step.
            self._past[: _PAST // 2] = self._past[::2].copy()
            self._num_past, self._stride = _PAST // 2, 2 * self._stride
        self._past[self._num_past] = own
        self._num_past += 1


def magnitude_of(rows: Floats) -> Floats:
    """The root of the mean square of the finite elements of each row; NaN where there are none."""
    with np.errstate(all="ignore"):
        magnitudes: Floats = np.sqrt(rows[:, SUM_SQUARES] / rows[:, NUM_FINITE])
    return magnitudes


def _shown(rows: Floats) -> Floats:
    is_finite = rows[:, NUM_FINITE] == rows[:, NUMEL]
    return np.where(is_finite, magnitude_of(rows), np.inf)


def zeros_of(rows: Floats) -> Floats:
    """Return the share of elements that are zero, of each row; NaN of empty tensors."""
    with np.errstate(all="ignore"):
        shares: Floats = rows[:, ZEROS] / rows[:, NUMEL]
    return shares


def is_infinite_alone(row: Floats) -> bool:
    """Return whether a row counts infinite elements of one sign and no NaN, as a mask has them."""
    bad = row[NUMEL] - row[NUM_FINITE]
    return bool(bad > 0 and bad in (row[NEGINF], row[POSINF]))
