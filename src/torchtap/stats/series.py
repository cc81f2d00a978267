"""What was measured, by step: numbers for every step, larger things for the last ones."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtap.core.errors import RunError, SiteError
from torchtap.core.record import steps_there
from torchtap.core.site import Site
from torchtap.stats.custom.protocol import Statistic
from torchtap.stats.custom.results import Extra, Missing
from torchtap.stats.custom.slices import Slices
from torchtap.stats.histogram import NUM_BINS, Histogram, Histograms
from torchtap.stats.kernels import native
from torchtap.stats.statistics import (
    LEANING,
    MAX,
    MIN,
    NO_ONE_WEIGHT,
    NOT_AN_UPDATE,
    NUM_TENSORS,
    NUMEL,
    ROW_WIDTH,
    SUM_SQUARES,
    Statistics,
    from_row,
    merge_rows,
    other_shape,
    why_no_ratio,
)

Rows = NDArray[np.float64]
States = dict[int, list[Any]]
"""Place -> states of the further statistics."""
Saved = Callable[[int, int], "list[Any] | None"]
"""``(step, place)``: states of the further statistics that stand in a file."""
ALL_STEPS = -1
_TOGETHER = 64
"""Parts that are added to the totals at a time."""
_BLOCK = 256
"""Totals that are made at once."""
_NO_SITE = -1
"""The place of a row whose numbers count no longer."""
_FAILED = "nothing was measured for it: it failed there, or met no tensor that it can read."


@dataclass(frozen=True, eq=False)
class StepHistograms:
    """Histograms, and the place of the site that each is of."""

    places: NDArray[np.int64]
    histograms: Histograms

    def of(self, place: int) -> Histogram | None:
        """That of one site."""
        merged = None
        places, numbers = self._by_place
        first, last = np.searchsorted(places, (place, place + 1)).tolist()
        for number in numbers[first:last].tolist():
            merged = _merge(merged, self.histograms.of(number))
        return merged

    @cached_property
    def _by_place(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The places, ascending, and which histogram each is of."""
        numbers = np.argsort(self.places, kind="stable")
        return self.places[numbers], numbers


class _Totals:
    """Histograms of all steps.

    Many parts are added at a time: the first brings the totals near, and the others find them.
    """

    def __init__(self) -> None:
        # Memory that is not touched costs nothing, so a block may be large.
        self._blocks: list[NDArray[np.int64]] = []
        self._seen: set[int] = set()
        self._sampled: set[int] = set()
        self._new: list[StepHistograms] = []
        self._lock = threading.Lock()

    def add(self, parts: list[StepHistograms]) -> None:
        """Count these too."""
        with self._lock:
            self._new += parts
            if len(self._new) >= _TOGETHER:
                self._add_new()

    def of(self, place: int) -> Histogram | None:
        """That of one site; ``None`` if it counted nothing."""
        with self._lock:
            self._add_new()
            if place not in self._seen:
                return None
            return Histogram.of(self._full(place), is_sample=place in self._sampled)

    def remove(self, place: int, part: Histogram) -> None:
        """Take out what was added before."""
        with self._lock:
            self._add_new()
            self._full(place)[part.bins] -= part.counts

    def _add_new(self) -> None:
        for part in self._new:
            places, histograms = part.places, part.histograms
            while len(places) and places.max() >= len(self._blocks) * _BLOCK:
                self._blocks.append(np.zeros((_BLOCK, NUM_BINS), dtype=np.int64))
            lists = histograms.bins, histograms.counts, histograms.ends
            native.add_lists(lists, self._blocks, places)
            self._seen.update(places.tolist())
            self._sampled.update(places[histograms.is_sample].tolist())
        self._new.clear()

    def _full(self, place: int) -> NDArray[np.int64]:
        full: NDArray[np.int64] = self._blocks[place // _BLOCK][place % _BLOCK]
        return full


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
    """

    site: Site
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    itemsize: int = 0
    notes: tuple[str, ...] = ()
    mean_sum: NDArray[Any] | None = None
    num_samples: int = 0
    why_no_mean: str = "it was not asked for, as with tt.Stats(sample_mean=['output'])"

    @property
    def is_replaced(self) -> bool:
        """Whether a new value takes the place of the old one within a step, see ``Meter``."""
        return self.site.port == "param_grad"

    @property
    def is_seen(self) -> bool:
        """Whether anything was measured there."""
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
        self._totals = _Totals()
        self._states: States = {}
        self._running: dict[int, States] = {}
        self._saved: Saved = _nothing_saved

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
        """What is known of a site in all steps."""
        return self.measured[self._places[site]]

    def steps_of(self, site: Site) -> list[int]:
        """Steps in which a site was measured."""
        place = self._places[site]
        return [step for step in self.steps if self._row(step, place) is not None]

    def at(self, site: Site, step: int | None = None) -> Statistics:
        """Statistics of a site in one step, the last one by default.

        Raises:
            SiteError: it was not measured in that step.
        """
        place = self._places[site]
        if step is None:
            step = next(iter(self.steps_of(site)[-1:]), None)
        row = None if step is None else self._row(step, place)
        if step is None or row is None:
            steps = self.steps_of(site)
            raise SiteError(f"{site} was not measured in step {step}. {steps_there(steps, step)}")
        histogram = self._histogram(self._steps[step], place)
        why = self._why_no_states(step)
        extra = self._extra(f"{site} (step {step})", self._states_at(step, place), why)
        return self._value(place, row, histogram, extra, step)

    def whole(self, site: Site) -> Statistics:
        """Statistics of a site over all steps."""
        place = self._places[site]
        extra = self._extra(f"{site} (all steps)", self._all_states(place), _FAILED)
        return self._value(place, self._merged_row(place), self.total(place), extra)

    def window(self, site: Site, steps: Iterable[int]) -> Statistics:
        """Statistics of a site over some steps together; ``notes`` says if it has not all of them.

        Raises:
            SiteError: it was measured in none of them.
        """
        place, wanted = self._places[site], set(steps)
        chosen = [step for step in self.steps_of(site) if step in wanted]
        if not wanted:
            raise SiteError(f"No step of {site} was asked for.")
        if not chosen:
            self.at(site, min(wanted))
        if len(chosen) == len(wanted) == 1:
            return self.at(site, chosen[0])
        notes = part_of(chosen, wanted)
        merged = Statistics()
        states: list[Any] | None = None
        lost = [step for step in chosen if self._states_at(step, place) is None]
        for step in chosen:
            merged = merged.merge(self.numbers_at(site, step, histogram=True))
            if not lost:
                states = self._both(states, self._states_at(step, place))
        where = f"{site} ({len(chosen)} steps from {chosen[0]} to {chosen[-1]})"
        why = self._why_no_states(lost[0]) if lost else ""
        extra = self._extra(where, states, why, notes)
        merged = replace(merged, extra=extra, notes=(*merged.notes, *notes))
        return merged if len(chosen) == 1 else without_ratio(merged, site)

    def numbers_at(self, site: Site, step: int, *, histogram: bool = False) -> Statistics:
        """Statistics of a site in one step without ``extra``: quicker, where many are read."""
        place = self._places[site]
        row = self._row(step, place)
        if row is None:
            return self.at(site, step)  # Says what is missing.
        counted = self._histogram(self._steps[step], place) if histogram else None
        return self._value(place, row, counted, Extra(), step)

    def _row(self, step: int, place: int) -> Rows | None:
        rows = self._steps[step].rows if step in self._steps else ()
        if place >= len(rows) or not rows[place][NUM_TENSORS]:
            return None
        row: Rows = rows[place]
        return row

    def _merged_row(self, place: int) -> Rows:
        merged: Rows = np.zeros(ROW_WIDTH)
        merged[MIN], merged[MAX] = math.inf, -math.inf
        for step in self.steps:
            row = self._row(step, place)
            if row is not None:
                merge_rows(merged, row)
        return merged

    def total(self, place: int) -> Histogram | None:
        """The histogram of a site over all steps."""
        merged = self._totals.of(place)
        return self._empty() if merged is None else merged

    # ------------------------------------------------------------------ to a file and back

    def as_array(self) -> tuple[list[int], Rows]:
        """Steps, and all rows as ``float64[steps, sites, 16]``."""
        rows = np.zeros((len(self.steps), len(self.measured), ROW_WIDTH))
        rows[:, :, MIN], rows[:, :, MAX] = math.inf, -math.inf
        for number, step in enumerate(self.steps):
            known = self._steps[step].rows
            rows[number, : len(known)] = known
        return self.steps, rows

    def histograms(self) -> Iterator[tuple[int, int, Histogram]]:
        """Step, place and histogram of all that are kept; under step -1 those of all steps."""
        for place, measured in enumerate(self.measured):
            if not (measured.is_seen and self.has_histograms):
                continue
            total = self.total(place)
            if total is not None:
                yield ALL_STEPS, place, total
            for step in self.steps:
                histogram = self._histogram(self._steps[step], place)
                if histogram is not None:
                    yield step, place, histogram

    def states(self) -> Iterator[tuple[int, int, list[Any]]]:
        """Step, place and states of the further statistics; under step -1 those of all steps."""
        for place, measured in enumerate(self.measured):
            if not measured.is_seen:
                continue
            whole = self._all_states(place)
            if whole is not None:
                yield ALL_STEPS, place, whole
            for step in self.steps_of(measured.site):
                states = self._states_at(step, place)
                if states is not None:
                    yield step, place, states

    def is_kept(self, step: int) -> bool:
        """Whether histograms and further statistics of a step are still kept."""
        return self._steps[step].parts is not None

    def restore(
        self,
        steps: list[int],
        rows: Rows,
        kept: list[bool],
        histograms: Mapping[int, Mapping[int, Histogram]],
        saved: Saved,
    ) -> None:
        """Take back what :meth:`as_array`, :meth:`is_kept`, :meth:`histograms` and :meth:`states`
        gave."""
        self._saved = saved
        for step, own, is_kept in zip(steps, rows, kept, strict=True):
            known = histograms.get(step)
            parts = [] if known is None else [_part(known)]
            self._steps[step] = _Step(step, own.copy(), parts if is_kept else None)
            self._recent.append(self._steps[step])
        if ALL_STEPS in histograms:
            self._totals.add([_part(histograms[ALL_STEPS])])

    # ------------------------------------------------------------------ small things

    def _states_at(self, step: int, place: int) -> list[Any] | None:
        """Of a step that has ended, with what is running of it; ``None`` if kept no longer."""
        held = self._steps[step].states.get(place)
        if held is None:
            held = self._saved(step, place)
        return self._both(held, self._running.get(step, {}).get(place))

    def _all_states(self, place: int) -> list[Any] | None:
        """Of all steps, with what is running."""
        states = self._states.get(place)
        if states is None:
            states = self._saved(ALL_STEPS, place)
        for running in self._running.values():
            states = self._both(states, running.get(place))
        return states

    def _why_no_states(self, step: int) -> str:
        if not self.statistics or self.is_kept(step):
            return _FAILED
        kept = [one for one in self.steps if self.is_kept(one)]
        first = f", from {kept[0]} on" if kept else ""
        return (
            f"such results are kept of the last {self.keep} steps{first}, and step {step} is "
            f"older. Watch with a larger tt.Stats(keep=...)."
        )

    def _both(self, one: list[Any] | None, two: list[Any] | None) -> list[Any] | None:
        if one is None or two is None:
            return two if one is None else one
        return self._merged(one, two)

    def _merged(self, one: list[Any], two: list[Any]) -> list[Any]:
        return [s.merge(a, b) for s, a, b in zip(self.statistics, one, two, strict=True)]

    def _extra(
        self, where: str, states: list[Any] | None, why: str, notes: tuple[str, ...] = ()
    ) -> Extra:
        """Results of some states; where there are none, ``why``."""
        if states is None:
            return Extra(where=where, missing={one.name: why for one in self.statistics})
        results, missing = {}, {}
        for one, state in zip(self.statistics, states, strict=True):
            result = state if isinstance(state, Missing) else one.finish(state)
            if isinstance(result, Missing):
                missing[one.name] = result.why
            elif isinstance(result, Slices):
                results[one.name] = replace(result, notes=notes)
            else:
                results[one.name] = result
        return Extra(results, where=where, missing=missing)

    def _weight_l2(self, site: Site, step: int | None) -> tuple[float, str]:
        """Norm of the parameter that an update belongs to, and why there is no ratio to it."""
        if site.port != "update":
            return math.nan, NOT_AN_UPDATE
        if step is None:
            return math.nan, NO_ONE_WEIGHT
        param = Site(site.path, "param", site.leaf)
        place = self._places.get(param)
        row = None if place is None else self._row(step, place)
        if place is None or row is None:
            return math.nan, why_no_ratio(math.nan, str(param))
        shapes = self.measured[place].shape, self.of(site).shape
        if None not in shapes and shapes[0] != shapes[1]:
            return math.nan, other_shape(str(param), *shapes)
        weight_l2 = math.sqrt(row[SUM_SQUARES])
        return weight_l2, why_no_ratio(weight_l2, str(param))

    def _value(
        self,
        place: int,
        row: Rows,
        histogram: Histogram | None,
        extra: Extra,
        step: int | None = None,
    ) -> Statistics:
        """Of one step, or of all."""
        measured = self.measured[place]
        weight_l2, why = self._weight_l2(measured.site, step)
        is_leaning = histogram is not None and histogram.is_sample and measured.shape is None
        return from_row(
            row.tolist(),
            histogram=histogram,
            dtype=measured.dtype,
            shape=measured.shape,
            nbytes=int(row[NUMEL]) * measured.itemsize,
            weight_l2=weight_l2,
            why_no_ratio=why,
            notes=(*measured.notes, LEANING) if is_leaning else measured.notes,
            extra=extra,
        )

    def _merge_step(self, entry: _Step, rows: Rows) -> None:
        if len(rows) > len(entry.rows):
            more = np.zeros((len(rows) - len(entry.rows), ROW_WIDTH))
            more[:, MIN], more[:, MAX] = math.inf, -math.inf
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

    def _histogram(self, entry: _Step, place: int) -> Histogram | None:
        merged = None
        for part in entry.parts or ():
            merged = _merge(merged, part.of(place))
        # What counted nothing, because nothing was finite, still has a histogram.
        return merged if merged is not None or entry.parts is None else self._empty()

    def _empty(self) -> Histogram | None:
        return Histogram.sparse([], []) if self.has_histograms else None


def _merge(one: Histogram | None, two: Histogram | None) -> Histogram | None:
    if one is None or two is None:
        return two if one is None else one
    return one.merge(two)


def without_ratio(stats: Statistics, site: Site) -> Statistics:
    """The same of several steps: the parameter that an update is divided by was another in each."""
    why = NO_ONE_WEIGHT if site.port == "update" else NOT_AN_UPDATE
    return replace(stats, weight_l2=math.nan, why_no_ratio=why)


def part_of(steps: Collection[int], wanted: Iterable[int]) -> tuple[str, ...]:
    """What to note of a window that was measured in some of its steps only.

    Example:
        >>> part_of([90, 91, 92], range(90, 100)), part_of([0, 1], range(2))
        (('3 of 10 steps',), ())
    """
    num, most = len(set(steps)), len(set(wanted))
    return () if num == most else (f"{num} of {most} steps",)


def _nothing_saved(step: int, place: int) -> None:
    """Of a run that is in no file."""


def _part(known: Mapping[int, Histogram]) -> StepHistograms:
    histograms = list(known.values())
    return StepHistograms(
        np.array(list(known), dtype=np.int64),
        Histograms(
            np.concatenate([h.bins for h in histograms]).astype(np.uint16),
            np.concatenate([h.counts for h in histograms]),
            np.cumsum([len(h.bins) for h in histograms]),
            np.array([h.is_sample for h in histograms]),
        ),
    )
