"""Join the measurements of the attempts of a rank into one series.

An attempt that was closed has all that ``tt.Stats`` kept; one that was not has the numbers of each
step. Numbers, histograms and states of a step are those of the attempt that counts there. Results
over all steps are merged of the attempts; where steps of one are superseded, they are computed
again from what is kept of single steps, or said to be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torchtap.core.record import EVAL, FORWARD
from torchtap.runs.store.growing_rows import NOT_CLOSED, RowsReader
from torchtap.runs.store.site_text import site_of
from torchtap.runs.store.statistics_files import measured_in
from torchtap.stats.algebra import (
    HISTOGRAMS,
    MIXED,
    SHAPES,
    SUMS,
    Rows,
    States,
    common,
    merge_states,
)
from torchtap.stats.catalogue.results import Missing
from torchtap.stats.histogram import Histogram
from torchtap.stats.kept_steps import ALL_STEPS, SavedSteps
from torchtap.stats.rows import NUM_TENSORS, blank_rows
from torchtap.stats.series import Series
from torchtap.stats.site_summary import SiteSummary

_SUPERSEDED = (
    "an attempt has further steps, which a later attempt repeats, and it is kept over all of its "
    "steps together"
)
_UNLIKE = "its samples differ in shape from attempt to attempt"
_NO_TOTAL = "no histogram over all steps"
_OTHERS = "the attempts measured other further statistics"
_Sites = dict[str, tuple[Sequence[Any], dict[int, Rows]]]
"""Site -> what is known of it, and its row in each step."""


class Attempt(NamedTuple):
    """The measurements of one attempt.

    Attributes:
        measured: all of it, or the numbers of each step alone.
        until: the step before which it counts; ``None`` for all.
    """

    measured: RowsReader | Series
    until: int | None


def joined_attempts(attempts: Sequence[Attempt]) -> Series:
    """Join the measurements of several attempts into one series.

    A later attempt supersedes from the first step that it measured on, too.
    """
    by_phase = {
        phase: [_sites_of(attempt.measured, phase) for attempt in attempts]
        for phase in (FORWARD, EVAL)
    }
    valid_until: list[int | None] = []
    until: int | None = None
    # From the last attempt backwards: one counts until the first step that any later one measured.
    for place in reversed(range(len(attempts))):
        valid_until.append(_least(until, attempts[place].until))
        sites = [rows for own in by_phase.values() for _, rows in own[place].values()]
        until = _least(until, min((step for rows in sites for step in rows), default=None))
    series = _Joining(attempts, by_phase[FORWARD], valid_until[::-1], FORWARD).series
    evaluation = _Joining(attempts, by_phase[EVAL], valid_until[::-1], EVAL).series
    series.evaluation = evaluation if evaluation.sites else None
    return series


def _least(one: int | None, two: int | None) -> int | None:
    return min((step for step in (one, two) if step is not None), default=None)


@dataclass(slots=True)
class _Part:
    """One attempt while they are joined.

    Attributes:
        series: what it kept; ``None`` where only the numbers of each step are there.
        steps: place in the joined series -> steps of the site that count.
        is_cut: whether some of its steps count no longer.
    """

    series: Series | None
    steps: dict[int, list[int]] = field(default_factory=dict)
    is_cut: bool = False


class _Joining:
    """Joins the attempts of one phase.

    Args:
        attempts: in their order.
        sites: of each, what it measured in this phase.
        valid_until: of each, the step before which it is_current.
        phase: ``forward`` or ``eval``.

    Attributes:
        series: the joined one.
    """

    def __init__(
        self,
        attempts: Sequence[Attempt],
        sites: Sequence[_Sites],
        valid_until: Sequence[int | None],
        phase: str,
    ) -> None:
        self._parts = [_Part(_series_of(attempt.measured, phase)) for attempt in attempts]
        kept = [one.series for one in self._parts if one.series is not None]
        last = kept[-1] if kept else Series(1)
        self.series = Series(max((one.keep for one in kept), default=1), last.statistics)
        self.series.has_histograms = any(one.has_histograms for one in kept)
        self._owners: dict[int, _Part] = {}
        by_step: dict[int, dict[int, Rows]] = {}
        for part, own, until in zip(self._parts, sites, valid_until, strict=True):
            self._add_rows(part, own, until, by_step)
        for place, site in enumerate(self.series.measured):
            self._describe_whole(place, site)
        self._restore(by_step)

    def _add_rows(
        self,
        part: _Part,
        sites: _Sites,
        until: int | None,
        by_step: dict[int, dict[int, Rows]],
    ) -> None:
        for text, (known, rows) in sites.items():
            current = [step for step in rows if until is None or step < until]
            part.is_cut |= len(current) < len(rows)
            if not current:
                continue
            place = self.series.place_of(site_of(text))
            _describe(self.series.measured[place], known)
            part.steps[place] = current
            for step in current:
                by_step.setdefault(step, {})[place] = rows[step]
                self._owners[step] = part

    def _restore(self, by_step: Mapping[int, Mapping[int, Rows]]) -> None:
        steps = sorted(by_step)
        whole = blank_rows(len(steps), len(self.series.measured))
        for number, step in enumerate(steps):
            for place, row in by_step[step].items():
                whole[number, place] = row
        # Histograms and states are handed over as functions: most are never asked for.
        kept = SavedSteps(filter(self._is_kept, steps), self._histograms, self._states)
        self.series.restore(steps, whole, kept)

    def _is_kept(self, step: int) -> bool:
        own = self._owners[step].series
        return own is not None and own.is_kept(step)

    # ------------------------------------------------------------------ over all steps

    def _having(self, place: int) -> list[_Part]:
        return [part for part in self._parts if place in part.steps]

    def _describe_whole(self, place: int, site: SiteSummary) -> None:
        """Say what is lacking of a site over all steps, and join its sums over samples."""
        parts = self._having(place)
        if self.series.has_histograms and any(self._total(part, place) is None for part in parts):
            why = NOT_CLOSED if any(part.series is None for part in parts) else _SUPERSEDED
            site.has_total = False
            site.note((f"{_NO_TOTAL}: {why}",))
        own = [part.series.of(site.site) for part in parts if part.series is not None]
        lost = [one.why_no_mean for one in own if one.mean_sum is None]
        if len(own) < len(parts):
            site.why_no_mean = NOT_CLOSED
        elif lost:
            site.why_no_mean = lost[0]
        # Sums over samples are kept over all steps of an attempt together: what steps that count no
        # longer added to them cannot be taken out.
        elif any(part.is_cut for part in parts):
            site.why_no_mean = _SUPERSEDED
        else:
            site.take_samples(SUMS.merge([one.samples for one in own]), _UNLIKE)

    def _total(self, part: _Part, place: int) -> Histogram | None:
        """Return the histogram of the steps of an attempt that count."""
        if part.series is None or not part.series.has_histograms:
            return None
        own = part.series.known_place(self.series.measured[place].site)
        return part.series.total(own, part.steps[place] if part.is_cut else None)

    def _histograms(self, step: int) -> dict[int, Histogram]:
        """Return the histograms of one step, or of all."""
        histograms = {}
        for place, site in enumerate(self.series.measured):
            if step == ALL_STEPS:
                parts = [self._total(part, place) for part in self._having(place)]
                there = [one for one in parts if one is not None]
                if there and len(there) == len(parts):
                    histograms[place] = HISTOGRAMS.merge(there)
                continue
            part = self._owners[step]
            if part.series is not None and step in part.steps.get(place, ()):
                current = part.series.histogram(step, part.series.known_place(site.site))
                if current is not None:
                    histograms[place] = current
        return histograms

    def _states(self, step: int, place: int) -> States | None:
        """Return states of the further statistics in one step, or in all."""
        if not self.series.statistics:
            return None
        if step == ALL_STEPS:
            parts = self._having(place)
            every = [self._all_states(part, place) for part in parts]
            return merge_states(self.series.statistics, every)
        part, site = self._owners[step], self.series.measured[place].site
        if place not in part.steps or not self._has_same_statistics(part):
            return None
        assert part.series is not None
        return part.series.states_at(step, part.series.known_place(site))

    def _has_same_statistics(self, part: _Part) -> bool:
        return part.series is not None and part.series.statistics == self.series.statistics

    def _all_states(self, part: _Part, place: int) -> States | None:
        """Return the states of the steps of an attempt that count, or why there are none."""
        many, own = len(self.series.statistics), part.series
        if own is None:
            return [Missing(f"{NOT_CLOSED}.")] * many
        if not self._has_same_statistics(part):
            return [Missing(f"{_OTHERS}.")] * many
        at = own.known_place(self.series.measured[place].site)
        if not part.is_cut:
            return own.states_at(ALL_STEPS, at)
        current = own.states_of(at, part.steps[place])
        return [Missing(f"{_SUPERSEDED}.")] * many if current is None else current


def _series_of(measured: RowsReader | Series, phase: str) -> Series | None:
    if isinstance(measured, RowsReader):
        return None
    return measured if phase == FORWARD else measured.evaluation


def _sites_of(measured: RowsReader | Series, phase: str) -> _Sites:
    if isinstance(measured, RowsReader):
        return measured.rows(phase)
    series = _series_of(measured, phase)
    if series is None:
        return {}
    one, found = measured_in(series, phase), _Sites()
    for place, (site, known) in enumerate(one.sites.items()):
        rows = zip(one.steps, one.rows[:, place], strict=True)
        found[site] = known, {step: row for step, row in rows if row[NUM_TENSORS]}
    return found


def _describe(measured: SiteSummary, known: Sequence[Any]) -> None:
    dtype, shape, itemsize, notes = known
    dims = None if shape is None else tuple(shape)
    if measured.is_seen:
        dtype = common((measured.dtype, dtype), MIXED)
        dims = SHAPES.merge((measured.shape, dims))
    measured.dtype, measured.shape, measured.itemsize = dtype, dims, itemsize
    measured.note(notes)
