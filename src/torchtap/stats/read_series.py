"""Read a series at a site: in one step, over some steps together, or over all."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from torchtap.core.errors import SiteError
from torchtap.core.record import steps_there
from torchtap.core.site import Site
from torchtap.stats.algebra import HISTOGRAMS, States
from torchtap.stats.catalogue.results import Extra, Missing
from torchtap.stats.histogram import Histogram
from torchtap.stats.kept_steps import ALL_STEPS
from torchtap.stats.rows import NUMEL, SUM_SQUARES
from torchtap.stats.series import Series
from torchtap.stats.statistics import (
    LEANING,
    NO_ONE_WEIGHT,
    NOT_AN_UPDATE,
    Statistics,
    from_row,
    other_shape,
    why_no_ratio,
)

_FAILED = (
    "nothing was measured for it: it was not asked for at this site, failed there, or met no "
    "tensor that it can read."
)


def at(series: Series, site: Site, step: int | None = None) -> Statistics:
    """Return statistics of a site in one step, the last one by default.

    Raises:
        SiteError: it was not measured in that step.
    """
    place = series.known_place(site)
    if step is None:
        step = next(iter(series.steps_of(site)[-1:]), None)
    row = None if step is None else series.rows.at(step, place)
    if step is None or row is None:
        steps = series.steps_of(site)
        raise SiteError(f"{site} was not measured in step {step}. {steps_there(steps, step)}")
    histogram = series.histogram(step, place)
    why = _why_no_states(series, step)
    extra = _extra(series, f"{site} (step {step})", series.states_at(step, place), why)
    return _value(series, place, row.tolist(), histogram, extra, step)


def whole(series: Series, site: Site) -> Statistics:
    """Return statistics of a site over all steps."""
    place = series.known_place(site)
    extra = _extra(series, f"{site} (all steps)", series.states_at(ALL_STEPS, place), _FAILED)
    return _value(series, place, series.rows.merged(place), series.total(place), extra)


def window(series: Series, site: Site, steps: Iterable[int]) -> Statistics:
    """Return statistics over some steps together; ``notes`` says if not all of them are there.

    Raises:
        SiteError: it was measured in none of them.
    """
    place, wanted = series.known_place(site), set(steps)
    chosen = [step for step in series.steps_of(site) if step in wanted]
    if not wanted:
        raise SiteError(f"No step of {site} was asked for.")
    if not chosen:
        # It raises, and says which steps there are.
        at(series, site, min(wanted))
    if len(chosen) == len(wanted) == 1:
        return at(series, site, chosen[0])
    notes = part_of(chosen, wanted)
    where = f"{site} ({len(chosen)} steps from {chosen[0]} to {chosen[-1]})"
    states, why = series.states_of(place, chosen), ""
    if states is None:
        lost = (step for step in chosen if series.states_at(step, place) is None)
        why = _why_no_states(series, next(lost))
    extra = _extra(series, where, states, why, notes)
    counted = [series.histogram(step, place) for step in chosen]
    there = [one for one in counted if one is not None]
    histogram = HISTOGRAMS.merge(there) if len(there) == len(counted) else None
    only = chosen[0] if len(chosen) == 1 else None
    merged = _value(series, place, series.rows.merged(place, chosen), histogram, extra, only)
    return replace(merged, notes=(*merged.notes, *notes))


def histograms_of(series: Series) -> Iterator[tuple[int, int, Histogram]]:
    """Yield step, place and histogram of all that are kept; of step -1 those of all steps."""
    for place, measured in enumerate(series.measured):
        if measured.is_seen and series.has_histograms:
            histograms = [(step, series.histogram(step, place)) for step in series.steps]
            for step, one in [(ALL_STEPS, series.total(place)), *histograms]:
                if one is not None:
                    yield step, place, one


def states_of(series: Series) -> Iterator[tuple[int, int, States]]:
    """Yield step, place and states of the further statistics; under step -1 those of all."""
    for place, measured in enumerate(series.measured):
        for step in [ALL_STEPS, *series.steps_of(measured.site)] if measured.is_seen else ():
            states = series.states_at(step, place)
            if states is not None:
                yield step, place, states


def _why_no_states(series: Series, step: int) -> str:
    if not series.statistics or series.is_kept(step):
        return _FAILED
    kept = [one for one in series.steps if series.is_kept(one)]
    first = f", from {kept[0]} on" if kept else ""
    return (
        f"such results are kept of the last {series.keep} steps{first}, and step {step} is "
        f"older. Watch with a larger tt.Stats(keep=...)."
    )


def _extra(
    series: Series, where: str, states: States | None, why: str, notes: tuple[str, ...] = ()
) -> Extra:
    """Return results of some states; where there are none, ``why``."""
    if states is None:
        return Extra(where=where, missing={statistic.name: why for statistic in series.statistics})
    results, missing = {}, {}
    for one, state in zip(series.statistics, states, strict=True):
        result = state if isinstance(state, Missing) else one.finish(state)
        if isinstance(result, Missing):
            missing[one.name] = result.why
        else:
            with_notes = getattr(result, "with_notes", None)
            results[one.name] = with_notes(notes) if callable(with_notes) else result
    return Extra(results, where=where, missing=missing)


def _weight_l2(series: Series, site: Site, step: int | None) -> tuple[float, str]:
    """Return norm of the parameter that an update belongs to, and why there is no ratio to it."""
    param = site.compared_with
    if param is None:
        return math.nan, NOT_AN_UPDATE
    if step is None:
        return math.nan, NO_ONE_WEIGHT
    row = series.rows.at(step, series.known_place(param)) if param in series else None
    if row is None:
        return math.nan, why_no_ratio(math.nan)
    shapes = series.of(param).shape, series.of(site).shape
    if None not in shapes and shapes[0] != shapes[1]:
        return math.nan, other_shape(*shapes)
    weight_l2 = math.sqrt(row[SUM_SQUARES])
    return weight_l2, why_no_ratio(weight_l2)


def _value(
    series: Series,
    place: int,
    row: list[float],
    histogram: Histogram | None,
    extra: Extra,
    step: int | None = None,
) -> Statistics:
    """Make the statistics of one step, or of all."""
    measured = series.measured[place]
    weight_l2, why = _weight_l2(series, measured.site, step)
    is_leaning = histogram is not None and histogram.is_sample and measured.shape is None
    return from_row(
        row,
        histogram=histogram,
        dtype=measured.dtype,
        shape=measured.shape,
        nbytes=int(row[NUMEL]) * measured.itemsize,
        weight_l2=weight_l2,
        why_no_ratio=why,
        notes=(*measured.notes, LEANING) if is_leaning else measured.notes,
        extra=extra,
    )


def without_ratio(stats: Statistics, site: Site) -> Statistics:
    """Return statistics of several steps without a ratio: the parameter changed in each step."""
    why = NO_ONE_WEIGHT if site.compared_with else NOT_AN_UPDATE
    return replace(stats, weight_l2=math.nan, why_no_ratio=why)


def part_of(steps: Collection[int], wanted: Iterable[int]) -> tuple[str, ...]:
    """Return the note of a window that was measured in some of its steps only.

    Example:
        >>> part_of([90, 91, 92], range(90, 100)), part_of([0, 1], range(2))
        (('3 of 10 steps',), ())
    """
    num, most = len(set(steps)), len(set(wanted))
    return () if num == most else (f"{num} of {most} steps",)
