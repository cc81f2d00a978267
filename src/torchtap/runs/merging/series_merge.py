"""Merge the measurements of ``tt.Stats`` on each rank into one series of the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from torchtap.core.site import Site
from torchtap.runs.merging.merge_absences import MergeAbsences, agreeing
from torchtap.runs.merging.placement_rules import MergeRule, Refused, Whole, joined_whole, rule_of
from torchtap.runs.merging.row_comparison import Mask, aligned, same_rows, told_by_values
from torchtap.runs.merging.stages import Stages
from torchtap.runs.merging.state_merge import StateMerge
from torchtap.stats.algebra import (
    HISTOGRAMS,
    MIXED,
    ROWS,
    SHAPES,
    SUMS,
    Rows,
    SampleSum,
    States,
    common,
)
from torchtap.stats.histogram import Histogram
from torchtap.stats.kept_steps import ALL_STEPS, SavedSteps
from torchtap.stats.rows import NUM_TENSORS, blank_rows
from torchtap.stats.series import Series
from torchtap.stats.site_summary import SiteSummary

_LEFT_OUT = "ranks have steps that are left out of the merged run, and it is kept over all only"
_UNLIKE = "its samples on the ranks do not fit together"
_NO_TOTAL = "no histogram over all steps: some are left out or lost, and single ones are not kept"

T = TypeVar("T")


@dataclass(slots=True)
class _Site:
    """One site while it is merged.

    Attributes:
        site: where.
        rule: how its parts make up the whole.
        rows: rank -> its rows in the common steps, blank where it has none.
        is_used: in which of these steps the parts make up a whole.
    """

    site: Site
    rule: MergeRule
    rows: Mapping[int, Rows]
    is_used: Mask


class SeriesMerge:
    """Merges the series of some ranks.

    Args:
        sources: rank -> what it measured.
        steps: those that all ranks have.
        stages: of a pipeline, and how the ranks of each share the work.
        problems: takes what is not as it should be.
    """

    def __init__(
        self,
        sources: Mapping[int, Series],
        steps: Sequence[int],
        stages: Stages,
        problems: MergeAbsences,
    ) -> None:
        self._sources = sources
        self._steps = list(steps)
        self._stages = stages
        self._problems = problems
        first = next(iter(sources.values()))
        self._merged = Series(first.keep, first.statistics)
        self._merged.has_histograms = all(source.has_histograms for source in sources.values())
        self._histograms: dict[int, dict[int, Histogram]] = {}
        self._states: dict[tuple[int, int], States] = {}
        own = {rank: set(one.steps) for rank, one in sources.items()}
        self._has_all = all(known <= set(self._steps) for known in own.values())
        self._kept = {
            step
            for step in self._steps
            if all(step in own[rank] and one.is_kept(step) for rank, one in sources.items())
        }

    def merge(self) -> Series:
        """Return the series of the whole."""
        arrays = {rank: aligned(one, self._steps) for rank, one in self._sources.items()}
        sites = dict.fromkeys(site for source in self._sources.values() for site in source.sites)
        merged = [self._merge_site(site, arrays) for site in sites]
        rows = [row for row in merged if row is not None]
        every = np.stack(rows, axis=1) if rows else blank_rows(len(self._steps), 0)
        some: Mask = np.any(every[..., NUM_TENSORS], axis=-1)
        steps = self._steps_at(some)
        states, histograms = self._states, self._histograms
        self._merged.restore(
            steps,
            every[some],
            SavedSteps(
                self._kept,
                lambda step: histograms.get(step, {}),
                lambda step, place: states.get((step, place)),
            ),
        )
        return self._merged

    # ------------------------------------------------------------------ one site

    def _merge_site(self, site: Site, arrays: Mapping[int, Rows]) -> Rows | None:
        # A rank without the site has blank rows, which change no sum that they are merged into.
        blank = blank_rows(len(self._steps))
        rows = {
            rank: arrays[rank][:, one.known_place(site)] if site in one else blank
            for rank, one in self._sources.items()
        }
        if not any(row[:, NUM_TENSORS].any() for row in rows.values()):
            return None  # It is in steps alone that are left out.
        there = {rank: one.of(site) for rank, one in self._sources.items() if site in one}
        try:
            _, ranks = self._stages.ranks_of(site, there)
            rule = rule_of(site, {rank: one.notes for rank, one in there.items()}, ranks)
        except Refused as refused:
            self._problems.refuse(site, str(refused))
            return None
        rule = told_by_values(rule, rows)
        one = _Site(site, rule, rows, np.ones(len(self._steps), dtype=bool))
        merged = self._merge_rows(one)
        merged[~one.is_used] = blank[~one.is_used]
        is_there = merged[:, NUM_TENSORS] > 0
        if not is_there.any():
            return None
        place = self._merged.place_of(site)
        is_whole = self._has_all and bool(one.is_used.all())
        _describe(self._merged.measured[place], there, rule, is_whole=is_whole)
        self._collect_histograms(place, one, self._steps_at(is_there), is_whole=is_whole)
        self._collect_states(place, one, self._steps_at(is_there), is_whole=is_whole)
        return merged

    def _merge_rows(self, one: _Site) -> Rows:
        wholes = []
        for whole in one.rule.wholes:
            self._check_replicas(one, whole)
            parts = {place: _of_any(one.rows, ranks) for place, ranks in whole.parts.items()}
            ranks = list(whole.parts.values())
            self._check_there(one, ranks, list(parts.values()), is_needed=True)
            wholes.append(joined_whole(parts, whole.axes, ROWS))
        ranks = [whole.ranks for whole in one.rule.wholes]
        self._check_there(one, ranks, wholes, is_needed=False)
        return ROWS.merge(wholes)

    def _check_replicas(self, one: _Site, whole: Whole) -> None:
        """Find the steps in which replicas differ, and use none of them."""
        for ranks in whole.parts.values():
            first, *others = (one.rows[rank] for rank in ranks)
            differ = np.zeros(len(self._steps), dtype=bool)
            for rows in others:
                differ |= ~same_rows(first, rows)
            if not differ.any():
                continue
            at = int(np.flatnonzero(differ)[0])
            here = [one.rows[rank][at] for rank in ranks]
            groups = agreeing(ranks, [[bool(same_rows(a, b)) for b in here] for a in here])
            self._problems.differ(one.site, groups, self._steps_at(differ))
            one.is_used &= ~differ

    def _check_there(
        self,
        one: _Site,
        ranks: Sequence[tuple[int, ...]],
        rows: Sequence[Rows],
        *,
        is_needed: bool,
    ) -> None:
        """Find the steps in which some parts are there and others are not.

        Args:
            one: the site.
            ranks: of each part, who has it.
            rows: of each part.
            is_needed: whether without them there is no whole.
        """
        there = np.stack([own[:, NUM_TENSORS] > 0 for own in rows])
        is_lacking = there.any(axis=0) & ~there
        lacking = {
            rank: self._steps_at(missing)
            for own, missing in zip(ranks, is_lacking, strict=True)
            for rank in own
        }
        self._problems.lack(one.site, lacking)
        if is_needed:
            one.is_used &= ~is_lacking.any(axis=0)

    def _steps_at(self, mask: Mask) -> list[int]:
        return [step for step, is_there in zip(self._steps, mask, strict=True) if is_there]

    # ------------------------------------------------------------------ histograms and states

    def _collect_histograms(
        self, place: int, one: _Site, steps: Sequence[int], *, is_whole: bool
    ) -> None:
        """Merge those of every step that is kept, and those of all steps."""
        if not self._merged.has_histograms:
            return
        histograms: dict[int, Histogram | None] = {}
        for step in [step for step in steps if step in self._kept]:
            held = self._of_ranks(one, lambda series, at: series.histogram(step, at))  # noqa: B023
            histograms[step] = one.rule.whole_of(held, HISTOGRAMS)
        counted = None if is_whole else set(steps)
        held = self._of_ranks(one, lambda series, at: series.total(at, counted))
        if len(held) == len(self._of_ranks(one, lambda series, at: at)):
            histograms[ALL_STEPS] = one.rule.whole_of(held, HISTOGRAMS)
        else:
            self._merged.measured[place].has_total = False
            self._merged.measured[place].note((_NO_TOTAL,))
        for step, histogram in histograms.items():
            if histogram is not None:
                self._histograms.setdefault(step, {})[place] = histogram

    def _collect_states(
        self, place: int, one: _Site, steps: Sequence[int], *, is_whole: bool
    ) -> None:
        """Merge what the further statistics have of every step that is kept, and of all steps."""
        if not self._merged.statistics:
            return
        shape = self._merged.measured[place].shape
        num_dims = None if shape is None else len(shape)
        merge = StateMerge(one.site, one.rule, num_dims, self._merged.statistics)
        kept = [step for step in steps if step in self._kept]
        by_step: dict[int, States | None] = {}
        for step in kept:
            held = self._of_ranks(one, lambda series, at: series.states_at(step, at))  # noqa: B023
            by_step[step] = merge.of_step(held)
        per_step = [states for states in by_step.values() if states is not None]
        totals = None
        if is_whole:
            totals = self._of_ranks(one, lambda series, at: series.states_at(ALL_STEPS, at))
        by_step[ALL_STEPS] = merge.of_all(per_step if kept == steps else None, totals)
        self._states |= {
            (step, place): states for step, states in by_step.items() if states is not None
        }
        for name, why in merge.missing.items():
            self._problems.refuse(one.site, f"of {name!r}, {why.rstrip('.')}")

    def _of_ranks(self, one: _Site, read: Callable[[Series, int], T | None]) -> dict[int, T]:
        """Read a value from each rank that has one; of replicas, from the first."""
        by_rank = {}
        first = [ranks[0] for whole in one.rule.wholes for ranks in whole.parts.values()]
        for rank in first:
            series = self._sources[rank]
            value = read(series, series.known_place(one.site)) if one.site in series else None
            if value is not None:
                by_rank[rank] = value
        return by_rank


def _describe(
    merged: SiteSummary, there: Mapping[int, SiteSummary], rule: MergeRule, *, is_whole: bool
) -> None:
    """Fill in the summary of a merged site.

    Args:
        merged: the one to fill.
        there: rank -> its summary there.
        rule: how the parts make up the whole.
        is_whole: whether every step of every rank is in it.
    """
    merged.dtype = common((one.dtype for one in there.values()), MIXED)
    merged.itemsize = next(iter(there.values())).itemsize
    merged.notes = tuple(dict.fromkeys((*rule.labels, *rule.notes, *rule.together)))
    ranks = [rank for whole in rule.wholes for rank in whole.ranks]
    shapes = {rank: there[rank].shape if rank in there else None for rank in ranks}
    merged.shape = rule.whole_of(shapes, SHAPES)
    lost = [one.why_no_mean for one in there.values() if one.mean_sum is None]
    if lost or not is_whole:
        merged.why_no_mean = lost[0] if lost else _LEFT_OUT
        return
    samples = rule.whole_of({rank: one.samples for rank, one in there.items()}, SUMS)
    merged.take_samples(samples or SampleSum(), _UNLIKE)


def _of_any(rows: Mapping[int, Rows], ranks: Sequence[int]) -> Rows:
    """Return the rows of replicas: of the first of them that has one."""
    merged: Rows = rows[ranks[0]]
    for rank in ranks[1:]:
        merged = np.where(merged[:, NUM_TENSORS, None] > 0, merged, rows[rank])
    return merged
