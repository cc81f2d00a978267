"""Says what stands out in a run: where it first was not finite, and which gradients are zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torchtap.core.site import Site
from torchtap.core.text import count, number, plural
from torchtap.runs.meta import Meta
from torchtap.show.page.measured_run import MeasuredRun, SiteNumbers

_MOST_NAMED = 6


@dataclass(frozen=True, slots=True)
class Highlight:
    """One thing that stands out.

    Attributes:
        text: it, in a sentence.
        tone: ``bad``, ``warn`` or ``good``.
        site: where, as text; empty where it is of no one site.
        step: in which step.
    """

    text: str
    tone: str
    site: str = ""
    step: int | None = None

    @property
    def address(self) -> str:
        """Return the part of the page's address that opens it."""
        parts = [f"site={quoted(self.site)}"] if self.site else []
        parts += [f"step={self.step}"] if self.step is not None else []
        return f"#{'&'.join(parts)}" if parts else ""


def quoted(text: str) -> str:
    """Quote a text for an address."""
    from urllib.parse import quote

    return quote(text, safe="", errors="backslashreplace")


def find(measured: MeasuredRun) -> list[Highlight]:
    """Return what stands out, the worst first."""
    highlights = [
        *_not_finite(measured),
        *_bad_scalars(measured),
        *_without_gradient(measured),
        *_constant(measured),
    ]
    if not any(highlight.tone == "bad" for highlight in highlights) and measured.sites:
        steps = plural(len(measured.run.steps), "step")
        highlights.insert(
            0, Highlight(f"Everything that was watched is finite in {steps}.", "good")
        )
    return highlights


def _not_finite(measured: MeasuredRun) -> Iterator[Highlight]:
    bad = [site for site in measured.sites.values() if site.first_bad is not None]
    if not bad:
        return
    moment = moments(measured.run.meta)
    first = min(bad, key=lambda one: (one.first_bad or 0, *moment(one.site)))
    also = f" In all, {count(len(bad))} of {plural(len(measured.sites), 'site')} had some."
    yield Highlight(
        f"NaN or infinity was first seen in step {first.first_bad} at {first.site}.{also}",
        "bad",
        str(first.site),
        first.first_bad,
    )


def _bad_scalars(measured: MeasuredRun) -> Iterator[Highlight]:
    for name, bad in measured.bad_scalars.items():
        places = np.flatnonzero(bad > 0)
        step = measured.steps[int(places[0])]
        times = f", in {count(len(places))} steps in all" if len(places) > 1 else ""
        text = f"The logged {name} was NaN or infinite first in step {count(step)}{times}."
        yield Highlight(text, "bad", step=step)


def by_depth(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return the sites of runs in the order of the forward, a module after all inside of it."""
    depths: dict[str, tuple[int, int, int]] = {}
    for run in runs:
        moment = moments(run.run.meta)
        for name, numbers in run.sites.items():
            depths.setdefault(name, moment(Site(numbers.site.path, "output")))
    return sorted(depths, key=lambda name: depths[name])


def moments(meta: Meta) -> Callable[[Site], tuple[int, int, int]]:
    """Return a function that says when in a step a site comes, by the order of the modules.

    Parameters come first, as they are when a step begins; in the forward the output of a module
    comes after all that is inside of it; the backward has the reverse order; updates come last.
    """
    places = {path: place for place, path in enumerate(meta.modules)}
    ends = dict(places)
    for path, place in places.items():
        parts = path.split(".")
        for above in ("", *(".".join(parts[:n]) for n in range(1, len(parts)))):
            ends[above] = max(ends.get(above, place), place)

    def moment(site: Site) -> tuple[int, int, int]:
        phase = {"param": 0, "buffer": 0, "update": 3}.get(
            site.port, 2 if "grad" in site.port else 1
        )
        own, end = places.get(site.path, len(places)), ends.get(site.path, len(places))
        is_result = site.port in ("output", "grad_output")
        forward = (2 * end + 1, -own) if is_result else (2 * own, 0)
        return (phase, -forward[0], -forward[1]) if phase == 2 else (phase, *forward)

    return moment


def _without_gradient(measured: MeasuredRun) -> Iterator[Highlight]:
    gradients = [site for site in measured.sites.values() if site.is_gradient]
    dead = [
        gradient
        for gradient in gradients
        if is_zero(gradient) and str(gradient.site) not in measured.known_zero
    ]
    if dead:
        yield Highlight(
            f"{_named(one.site for one in dead)}: the gradient is zero in every step.",
            "warn",
            str(dead[0].site),
        )
    known = [measured.sites[name].site for name in measured.known_zero]
    if known:
        reason = next(iter(measured.known_zero.values()))
        text = f"{_named(known)}: zero by construction, up to rounding: {reason}."
        yield Highlight(text, "good", str(known[0]))


def _constant(measured: MeasuredRun) -> Iterator[Highlight]:
    units = [
        site
        for site in measured.sites.values()
        if site.site.port == "output" and _is_always(site, "zeros", 1.0)
    ]
    if units:
        named = _named(unit.site for unit in units)
        yield Highlight(
            f"{named}: every element is zero in every step.", "warn", str(units[0].site)
        )


def is_zero(one: SiteNumbers) -> bool:
    """Return whether a site is zero in every step in which it was measured."""
    return _is_always(one, "absmax", 0.0)


def _is_always(one: SiteNumbers, name: str, value: float) -> bool:
    seen = one.series[name][~np.isnan(one.series[name])]
    return bool(len(seen) and (seen == value).all())


def _named(sites: Iterable[Site]) -> str:
    texts = [str(site) for site in sites]
    more = len(texts) - _MOST_NAMED
    return ", ".join(texts[:_MOST_NAMED]) + (f" and {count(more)} more" if more > 0 else "")


def compare(one: MeasuredRun, other: MeasuredRun) -> list[Highlight]:
    """Say in what two runs differ: sites that only one has, and the first step that departs."""
    highlights = []
    for own, rest in ((one, other), (other, one)):
        only = [numbers.site for name, numbers in own.sites.items() if name not in rest.sites]
        if only:
            highlights.append(Highlight(f"Only {own.label} has {_named(only)}.", "warn"))
    departures = list(_departures(one, other))
    if departures:
        step, _, site, low, high = min(departures)
        text = (
            f"The runs first differ in step {step} at {site}: std {number(low)} in {one.label}, "
            f"{number(high)} in {other.label}."
        )
        highlights.append(Highlight(text, "warn", site, step))
    elif one.sites.keys() & other.sites.keys():
        highlights.append(
            Highlight("Both runs have the same numbers in all steps that both have.", "good")
        )
    return highlights


def _departures(
    one: MeasuredRun, other: MeasuredRun
) -> Iterator[tuple[int, int, str, float, float]]:
    shared = np.intersect1d(one.steps, other.steps)
    own, rest = (np.searchsorted(run.steps, shared) for run in (one, other))
    for place, name in enumerate(one.sites):
        if name not in other.sites:
            continue
        left, right = one.sites[name].series["std"][own], other.sites[name].series["std"][rest]
        differ = np.flatnonzero((left != right) & ~(np.isnan(left) & np.isnan(right)))
        if len(differ):
            at = int(differ[0])
            yield int(shared[at]), place, name, float(left[at]), float(right[at])


def absences(runs: Sequence[MeasuredRun]) -> list[tuple[str, str, list[str]]]:
    """Return label of the run, reason, and sites of everything that was asked for and not seen."""
    from torchtap.core.absence import by_reason

    return [
        (run.label, reason, sites)
        for run in runs
        for reason, sites in by_reason(run.run.absent).items()
    ]
