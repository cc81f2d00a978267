"""Measurements by step: numbers for every step, larger things for the last ones.

The sink fills a series; :mod:`~torchtap.stats.reading` makes statistics of it, and
:mod:`~torchtap.runs.single_file.packed` writes it into a file.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtap.core.errors import RunError
from torchtap.core.site import Site
from torchtap.stats.catalogue.protocol import Statistic
from torchtap.stats.catalogue.results import Missing
from torchtap.stats.histogram import Histogram, merged_together
from torchtap.stats.statistics import NUM_TENSORS, blank_rows, merge_rows
from torchtap.stats.step_histograms import StepHistograms, Totals, merged_histogram

Rows = NDArray[np.float64]
States = dict[int, list[Any]]
"""Place -> states of the further statistics."""
Saved = Callable[[int, int], "list[Any] | None"]
"""``(step, place)``: states of the further statistics that stand in a file."""
SavedHistograms = Callable[[int], Mapping[int, Histogram]]
"""``(step)``: place -> its histogram, of those that stand in a file."""
NewRows = Callable[[int, int], Rows]
"""``(steps, sites)``: an array for their rows."""
ALL_STEPS = -1
_NO_SITE = -1
"""The place of a row whose numbers count no longer."""


@dataclass(slots=True)
class SiteSummary:
    """One site of a :class:`Series`.

    Attributes:
        site: where.
        dtype: of its tensors, without ``torch.``; ``mixed`` if they differ.
        shape: of its tensors; ``None`` if they differ.
        itemsize: bytes per element.
        notes: what else is to be known of its numbers.
        mean_sum: sum over all samples (dim 0) of all steps, ``float64``; ``None`` if it could
            not be formed.
        num_samples: how many samples it holds.
        why_no_mean: why there is no ``mean_sum``.
        has_total: whether the histogram over all steps is known, where histograms are counted.
    """

    site: Site
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    itemsize: int = 0
    notes: tuple[str, ...] = ()
    mean_sum: NDArray[Any] | None = None
    num_samples: int = 0
    why_no_mean: str = "it was not asked for, as with tt.Stats(sample_mean=['output'])"
    has_total: bool = True

    @property
    def is_replaced(self) -> bool:
        """Return whether a new value replaces the old one within a step, see ``Meter``."""
        return self.site.port == "param_grad"

    @property
    def is_seen(self) -> bool:
        """Return whether anything was measured there."""
        return bool(self.dtype)

    def note(self, notes: Iterable[str]) -> None:
        """Something more is to be known."""
        self.notes = tuple(dict.fromkeys((*self.notes, *notes)))

    def mean_norm(self) -> float:
        """Norm of the mean over samples."""
        if self.mean_sum is None or not self.num_samples:
            raise RunError(f"{self.site} has no mean over samples: {self.why_no_mean}.")
        return float(np.linalg.norm(self.mean_sum.reshape(-1) / self.num_samples))


@dataclass(slots=True)
class _Step:
    """One step: a row for each site known by then, and what is kept for a while.

    Attributes:
        parts: histograms as they were taken, with the places of their rows; ``None`` when they
            and the states are kept no longer.
    """

    step: int
    rows: Rows
    parts: list[StepHistograms] | None = None
    states: States = field(default_factory=dict)


class Snapshot:
    """The rows of a series at one moment; nothing is copied, and nothing changes them later.

    Args:
        steps: ascending.
        rows: of each step, one for each site known by then.
        whole: the same as one array, where there is one.
        num_sites: how many there are now.

    Attributes:
        steps: ``int64``, ascending.
    """

    def __init__(
        self, steps: Sequence[int], rows: Sequence[Rows], whole: Rows | None, num_sites: int
    ) -> None:
        self.steps: NDArray[np.int64] = np.array(steps, dtype=np.int64)
        self._rows = rows
        self._whole = whole
        self._num_sites = num_sites

    def column(self, number: int) -> NDArray[np.float64]:
        """One of the 16 numbers, ``float64[steps, sites]``; 0 of sites not known in a step."""
        if self._whole is not None:
            found: NDArray[np.float64] = self._whole[..., number]
            return found
        found = np.zeros((len(self.steps), self._num_sites))
        for own, rows in zip(found, self._rows, strict=True):
            own[: len(rows)] = rows[: self._num_sites, number]
        return found

    def numbers(self, at: Any, places: Any, number: int) -> NDArray[np.float64]:
        """One of the 16 numbers, of some sites, each in the step that stands at a place."""
        found: NDArray[np.float64] = self.column(number)[at, places]
        return found


class Series:
    """Statistics of every site and step.

    Args:
        keep: of how many steps histograms and further statistics are kept; the 16 numbers are
            kept of all, and everything is also merged over all steps.
        statistics: the further ones.

    Attributes:
        measured: what is known of each site, by place.
        has_histograms: whether they are counted.
        revision: another number whenever something was added.
        evaluation: the same of evaluation forwards between training forwards, if there were any.
        lock: held by the thread that fills it, and by what reads several parts that belong
            together.
    """

    def __init__(self, keep: int = 64, statistics: Sequence[Statistic] = ()) -> None:
        self.keep = keep
        self.statistics = tuple(statistics)
        self.measured: list[SiteSummary] = []
        self._places: dict[Site, int] = {}
        self._steps: dict[int, _Step] = {}
        self._recent: deque[_Step] = deque()
        self.has_histograms = True
        self.revision = 0
        self.evaluation: Series | None = None
        self.lock = threading.RLock()
        self._totals = Totals()
        self._states: States = {}
        self._running: dict[int, States] = {}
        self._saved: Saved = _nothing_saved
        self._saved_histograms: SavedHistograms = _no_histograms
        self._unread: set[int] = set()
        self._new_rows: NewRows = blank_rows
        self._whole: Rows | None = None

    @property
    def kept_until_the_end(self) -> list[str]:
        """Return the names of what is kept until the end: all besides the numbers of each step."""
        histograms = ["histograms"] if self.has_histograms else []
        return [*histograms, *(repr(one.name) for one in self.statistics)]

    # ------------------------------------------------------------------ filled by the sink

    def place_of(self, site: Site) -> int:
        """The place of a site, which is new or not."""
        place = self._places.setdefault(site, len(self.measured))
        if place == len(self.measured):
            self.measured.append(SiteSummary(site))
        return place

    def add_step(self, step: int, rows: Rows, parts: list[StepHistograms]) -> None:
        """The rows of a step that has ended, one per site; later parts of it are merged."""
        self.revision += 1
        self._whole = None
        for saved in list(self._unread):
            self._read_histograms(saved)
        entry = self._steps.get(step)
        if entry is None:
            entry = self._steps[step] = _Step(step, rows, parts)
            self._recent.append(entry)
        else:
            self._merge_step(entry, rows)
            if entry.parts is not None:
                entry.parts += parts
        self._totals.add(parts)
        while len(self._recent) > self.keep:
            old = self._recent.popleft()
            old.parts, old.states = None, {}

    def show_states(self, step: int, states: States) -> None:
        """States of the further statistics in a step that goes on; the next take their place."""
        self._running[step] = states

    def add_states(self, step: int, states: States) -> None:
        """States of the further statistics in a step that has ended, or of what came later."""
        self._running.pop(step, None)
        own = self._steps[step].states
        for place, new in states.items():
            for held in (own, self._states):
                held[place] = self._merged(held[place], new) if place in held else list(new)

    # ------------------------------------------------------------------ read by the run

    @property
    def sites(self) -> list[Site]:
        """Sites that were measured at least once."""
        return [measured.site for measured in self.measured if measured.is_seen]

    @property
    def steps(self) -> list[int]:
        """Steps in which anything was measured."""
        return sorted(self._steps)

    def __contains__(self, site: object) -> bool:
        place = self._places.get(site) if isinstance(site, Site) else None
        return place is not None and self.measured[place].is_seen

    def of(self, site: Site) -> SiteSummary:
        """Return the summary of a site over all steps."""
        return self.measured[self._places[site]]

    def steps_of(self, site: Site) -> list[int]:
        """Steps in which a site was measured."""
        place = self._places[site]
        whole = self._whole
        if whole is not None:
            steps = self.steps
            return [steps[at] for at in np.flatnonzero(whole[:, place, NUM_TENSORS]).tolist()]
        return [step for step in self.steps if self.row(step, place) is not None]

    def snapshot(self) -> Snapshot:
        """All rows as they are now."""
        with self.lock:
            steps = self.steps
            rows = [] if self._whole is not None else [self._steps[step].rows for step in steps]
            return Snapshot(steps, rows, self._whole, len(self.measured))

    def known_place(self, site: Site) -> int:
        """The place of a site that is there."""
        return self._places[site]

    # ------------------------------------------------------------------ read by place

    def row(self, step: int, place: int) -> Rows | None:
        """The numbers of a site in one step; ``None`` if it was not measured there."""
        rows = self._steps[step].rows if step in self._steps else ()
        if place >= len(rows) or not rows[place][NUM_TENSORS]:
            return None
        row: Rows = rows[place]
        return row

    def merged_row(self, place: int) -> Rows:
        """The numbers of a site over all steps."""
        merged: Rows = blank_rows()
        for step in self.steps:
            row = self.row(step, place)
            if row is not None:
                merge_rows(merged, row)
        return merged

    def histogram(self, step: int, place: int) -> Histogram | None:
        """The histogram of a site in one step; ``None`` if it is kept no longer."""
        self._read_histograms(step)
        merged, parts = None, self._steps[step].parts
        for part in parts or ():
            merged = merged_histogram(merged, part.of(place))
        # What counted nothing, because nothing was finite, still has a histogram.
        return merged if merged is not None or parts is None else self._empty()

    def total(self, place: int) -> Histogram | None:
        """The histogram of a site over all steps; ``None`` where it is not known."""
        if not self.measured[place].has_total:
            return None
        self._read_histograms(ALL_STEPS)
        merged = self._totals.of(place)
        return self._empty() if merged is None else merged

    def total_of(self, place: int, steps: Collection[int]) -> Histogram | None:
        """The histogram of a site over some of its steps; ``None`` where it is not kept.

        It is that of these steps together, or that of all without those of the others.
        """
        own = self.steps_of(self.measured[place].site)
        chosen = [step for step in own if step in steps]
        if all(map(self.is_kept, chosen)):
            parts = [self.histogram(step, place) for step in chosen]
            return merged_together([one for one in (*parts, self._empty()) if one is not None])
        others = [step for step in own if step not in steps]
        whole = self.total(place)
        if whole is None or not all(map(self.is_kept, others)):
            return None
        for step in others:
            whole = whole.without(self.histogram(step, place) or Histogram.sparse([], []))
        return whole

    def states_at(self, step: int, place: int) -> list[Any] | None:
        """States of a site in one step, with what is running of it; ``None`` if kept no longer."""
        held = self._steps[step].states.get(place)
        if held is None:
            held = self._saved(step, place)
        return self.merged_states(held, self._running.get(step, {}).get(place))

    def all_states(self, place: int) -> list[Any] | None:
        """States of a site in all steps, with what is running."""
        states = self._states.get(place)
        if states is None:
            states = self._saved(ALL_STEPS, place)
        for running in self._running.values():
            states = self.merged_states(states, running.get(place))
        return states

    def merged_states(self, one: list[Any] | None, two: list[Any] | None) -> list[Any] | None:
        """States of both, where there are two."""
        if one is None or two is None:
            return two if one is None else one
        return self._merged(one, two)

    def is_kept(self, step: int) -> bool:
        """Return whether histograms and further statistics of a step are still kept."""
        return self._steps[step].parts is not None

    # ------------------------------------------------------------------ to a file and back

    def as_array(self, only: Sequence[int] | None = None) -> tuple[list[int], Rows]:
        """Steps, and all rows as ``float64[steps, sites, 16]``, or those of some steps."""
        if only is None:
            steps = self.steps
            return steps, self._rows_of(steps, self._new_rows)
        return list(only), self._rows_of(only, blank_rows)

    def _rows_of(self, steps: Sequence[int], new_rows: NewRows) -> Rows:
        num_sites = len(self.measured)  # Another thread may add to both.
        rows, blank = new_rows(len(steps), num_sites), blank_rows(num_sites)
        for number, step in enumerate(steps):
            known = self._steps[step].rows[:num_sites]
            rows[number] = blank
            rows[number, : len(known)] = known
        return rows

    def steps_after(self, last: int | None) -> list[int]:
        """Steps that came after one, ascending, without looking at all of them."""
        found = list(takewhile(lambda step: step != last, reversed(self._steps)))
        return sorted(found)

    def move_rows(self, steps: Sequence[int], new_rows: NewRows, new_array: NewRows) -> None:
        """Have the rows of some steps that have ended in other memory.

        Args:
            steps: which.
            new_rows: ``(steps, sites)`` gives an array ``float64[steps, sites, 16]`` of any
                content, for these rows.
            new_array: the same, for an array of all rows from now on.
        """
        with self.lock:
            self._new_rows = new_array
            for step, own in zip(steps, self._rows_of(steps, new_rows), strict=True):
                self._steps[step].rows = own

    def histograms(self) -> Iterator[tuple[int, int, Histogram]]:
        """Step, place and histogram of all that are kept; under step -1 those of all steps."""
        for place, measured in enumerate(self.measured):
            if not (measured.is_seen and self.has_histograms):
                continue
            total = self.total(place)
            if total is not None:
                yield ALL_STEPS, place, total
            for step in self.steps:
                histogram = self.histogram(step, place)
                if histogram is not None:
                    yield step, place, histogram

    def states(self) -> Iterator[tuple[int, int, list[Any]]]:
        """Step, place and states of the further statistics; under step -1 those of all steps."""
        for place, measured in enumerate(self.measured):
            if not measured.is_seen:
                continue
            whole = self.all_states(place)
            if whole is not None:
                yield ALL_STEPS, place, whole
            for step in self.steps_of(measured.site):
                states = self.states_at(step, place)
                if states is not None:
                    yield step, place, states

    def restore(
        self,
        steps: list[int],
        rows: Rows,
        kept: list[bool],
        histograms: SavedHistograms,
        saved: Saved,
    ) -> None:
        """Take back what :meth:`as_array`, :meth:`is_kept`, :meth:`histograms` and :meth:`states`
        gave.

        Args:
            steps: ascending.
            rows: of these.
            kept: of which steps histograms and states are kept.
            histograms: gives those of one step, or of :data:`ALL_STEPS`, when they are asked for.
            saved: gives states of the further statistics.
        """
        self._saved, self._saved_histograms = saved, histograms
        is_whole = not self._steps and steps == sorted(steps) and rows.ndim == 3
        self._whole = rows if is_whole and rows.shape[1] == len(self.measured) else None
        for step, own, is_kept in zip(steps, rows, kept, strict=True):
            self._steps[step] = _Step(step, own, [] if is_kept else None)
            self._recent.append(self._steps[step])
        self._unread = {ALL_STEPS, *(s for s, is_kept in zip(steps, kept, strict=True) if is_kept)}

    def _read_histograms(self, step: int) -> None:
        """Take those of a step that were saved and not asked for yet."""
        with self.lock:
            if step not in self._unread:
                return
            known = self._saved_histograms(step)
            if known:
                parts = [StepHistograms.of_one_step(known)]
                if step == ALL_STEPS:
                    self._totals.add(parts)
                else:
                    self._steps[step].parts = parts
            self._unread.discard(step)

    # ------------------------------------------------------------------ small things

    def _merged(self, one: list[Any], two: list[Any]) -> list[Any]:
        return [_together(s, a, b) for s, a, b in zip(self.statistics, one, two, strict=True)]

    def _merge_step(self, entry: _Step, rows: Rows) -> None:
        # A copy: what was read of the step before does not change.
        more = blank_rows(max(len(rows) - len(entry.rows), 0))
        entry.rows = np.concatenate([entry.rows, more])
        new = np.flatnonzero(rows[:, NUM_TENSORS]).tolist()
        replaced = [place for place in new if self.measured[place].is_replaced]
        self._drop(entry, replaced)
        entry.rows[replaced] = rows[replaced]
        for place in new:
            if not self.measured[place].is_replaced:
                merge_rows(entry.rows[place], rows[place])

    def _drop(self, entry: _Step, places: list[int]) -> None:
        """Forget what was measured in a step so far: other values take its place."""
        for number, part in enumerate(entry.parts or ()):
            dropped = np.isin(part.places, places)
            for old in np.flatnonzero(dropped).tolist():
                counted = part.histograms.of(old)
                if counted is not None:
                    self._totals.remove(int(part.places[old]), counted)
            if dropped.any() and entry.parts is not None:
                others = np.where(dropped, _NO_SITE, part.places)
                entry.parts[number] = StepHistograms(others, part.histograms)

    def _empty(self) -> Histogram | None:
        return Histogram.sparse([], []) if self.has_histograms else None


def _together(statistic: Statistic, one: Any, two: Any) -> Any:
    """The state of both; where one of them is not available, there is none of both."""
    missing = next((state for state in (one, two) if isinstance(state, Missing)), None)
    return statistic.merge(one, two) if missing is None else missing


def _no_histograms(step: int) -> Mapping[int, Histogram]:
    """Return no histograms, for a run that is in no file."""
    return {}


def _nothing_saved(step: int, place: int) -> None:
    """Return no saved statistics, for a run that is in no file."""
