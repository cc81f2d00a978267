"""The figure of histograms over the steps, one behind the other as ridges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtap.core.errors import InputError
from torchtap.core.text import count, number, plural
from torchtap.plot.extras import color_map
from torchtap.plot.panels import panels, title_above
from torchtap.plot.readings import name_sites, need_run
from torchtap.plot.style import (
    BAD,
    GREY,
    MAGNITUDE,
    SMALL,
    inches_across,
    label,
    on_two_lines,
    say,
    tidy,
    write_head,
)
from torchtap.plot.thinning import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchtap.core.site import Site
    from torchtap.runs.run import Run
    from torchtap.runs.select import Where
    from torchtap.stats.histogram import Histogram
    from torchtap.stats.statistics import Statistics

    Array = Any

MOST_RIDGES = 30
MOST_SITES = 12
_LEAST_CELLS, _MOST_CELLS = 40, 120
_TAILS = 0.005
"""Share of the elements of a step that may lie beyond the axis, on each side."""
_WIDE = 300.0
"""From this ratio of the reach to the middle magnitude on, the axis is logarithmic."""
_HEIGHT = 2.6
"""Height of the tallest ridge, in distances between two ridges."""


@dataclass(frozen=True, slots=True)
class _Ridge:
    """The histogram of one step, in cells of the axis.

    Attributes:
        step: which; none where it is of all steps together.
        density: share of the elements that are not zero in each cell, over its width.
        zeros: share of all elements.
        beyond: share of the elements that are not zero, beyond the axis.
        bad: NaN and infinite elements.
    """

    step: int | None
    density: Array
    zeros: float
    beyond: float
    bad: int


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis of cells: equal on a linear one, or on one that is logarithmic beyond a value."""

    low: float
    high: float
    linear_below: float
    num_cells: int

    def place(self, values: Array) -> Array:
        """Values as places on the axis, 0 at zero."""
        if not self.linear_below:
            return values
        ratio = np.abs(values) / self.linear_below
        with np.errstate(divide="ignore"):
            wide = np.where(ratio > 1, 1 + np.log10(np.maximum(ratio, 1e-300)), ratio)
        return np.sign(values) * wide

    @property
    def edges(self) -> Array:
        """Ends of the cells, as places."""
        low, high = self.place(np.array([self.low, self.high]))
        return np.linspace(low, high, self.num_cells + 1)

    def ticks(self) -> tuple[list[float], list[str]]:
        """Places and names of the ticks."""
        if not self.linear_below:
            from matplotlib.ticker import MaxNLocator

            values = MaxNLocator(4).tick_values(self.low, self.high)
            inside = [float(value) for value in values if self.low <= value <= self.high]
            return inside, [number(float(f"{one:.6g}")) for one in inside]
        reach = max(abs(self.low), abs(self.high))
        first, last = round(math.log10(self.linear_below)), math.floor(math.log10(reach))
        by = max(1, -(-(last - first + 1) // 3))
        powers = [10.0**one for one in range(last, first - 1, -by)]
        values = [*(-power for power in powers), 0.0, *powers]
        inside = [value for value in values if self.low <= value <= self.high]
        return self.place(np.array(inside)).tolist(), [number(one) for one in inside]


def histograms(run: Run, where: Where, *, ax: Axes | None = None) -> Figure:
    """Draw the histograms of some sites over the steps, as ridges from early (above) to late.

    A panel for each site, up to 12 spread over the depth. A ridge is the density of the elements
    that are not zero; all ridges of a panel share the axis, and each is
    as high as the others. The share of zeros, and NaN and
    Inf, stand at its end. At most half a percent on each side lies beyond the axis, which is
    logarithmic on both sides of zero where the values ask for it. Up to 30 steps are drawn, evenly,
    of those whose histograms are kept (the last 64, unless ``tt.Stats(keep=...)`` says more).

    Args:
        run: any run.
        where: patterns as everywhere, sites, or a function of a site.
        ax: as in :func:`series`; several panels share its place.

    Raises:
        SiteError: nothing was recorded or measured there.
        InputError: no histograms were counted.
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> import torch, torchtap as tt
        >>> with tt.watch(relu := torch.nn.ReLU(), to=tt.Stats()) as w:
        ...     for step in range(3):
        ...         _ = relu(torch.linspace(-1, 1 + step, 50))
        ...         w.step()
        >>> figure = tt.plot.histograms(w.run, "*")
    """
    need_run(run, "histograms")
    sites = run.select(where)
    chosen = [sites[place] for place in spread(len(sites), MOST_SITES)]
    figure, axes = panels(ax, len(chosen), height=3.4, most_cols=4, one_height=4.6)
    for one, site in zip(axes, chosen, strict=True):
        _draw(one, run, site, is_only=len(sites) == 1)
    if len(chosen) > 1:
        said = f"{len(chosen)} of {plural(len(sites), 'site')}, spread over the depth"
        title = f"Histograms of {name_sites(sites)} over the steps"
        title_above(figure, ax, title if len(chosen) == len(sites) else f"{title}: {said}")
    return figure


# ---------------------------------------------------------------------- read


def _draw(axes: Axes, run: Run, site: Site, *, is_only: bool) -> None:
    kept = _kept_steps(run, site)
    steps = [kept[place] for place in spread(len(kept), MOST_RIDGES)]
    by_step: list[tuple[int | None, Statistics]] = [
        (step, run.stats(site, step=step)) for step in steps
    ]
    if not by_step:
        by_step = [(None, run.stats(site, step="all"))]
    if all(stats.histogram is None for _, stats in by_step):
        raise InputError(
            f"{site} has no histograms: they were not counted. Measure with "
            f"tt.Stats(histogram=True), which is the default."
        )
    axis = _axis_of([stats for _, stats in by_step])
    title = f"Histograms of {site} over the steps" if is_only else str(site)
    points = 10.5 if is_only else 8.5
    if axis is None:
        say(axes, _nothing([stats for _, stats in by_step]))
        write_head(axes, title, points=points, room=1.1 * inches_across(axes))
        return
    ridges = [_ridge(step, stats, axis) for step, stats in by_step]
    _draw_ridges(axes, ridges, axis)
    if is_only and ridges[0].step is not None:
        label(axes, y="step")
    said = _words(run, site, ridges, [stats for _, stats in by_step], len(kept))
    if is_only:
        write_head(axes, title, said)
    else:
        room = 1.1 * inches_across(axes)
        short = said[0].partition(" At most")[0]
        write_head(axes, on_two_lines(title, room, points), [short], points=points, room=room)


def _kept_steps(run: Run, site: Site) -> list[int]:
    """Steps of which the histogram of a site is there."""
    steps, _ = run.over_steps(site, "numel")
    if site not in run.series:
        return steps
    return [step for step in steps if run.series.is_kept(step)]


def _axis_of(several: Sequence[Statistics]) -> _Axis | None:
    """Return the axis of all ridges; none where nothing but zeros was counted."""
    parts = [one.histogram for one in several if one.histogram is not None]
    values = np.concatenate([part.middles for part in parts]) if parts else np.zeros(0)
    values = values[values != 0]
    if not len(values):
        return None
    ends = [_ends(part) for part in parts]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    own = [_magnitudes(part) for part in parts]
    middle, least = (max(one[place] for one in own) for place in (0, 1))
    reach = max(abs(low), abs(high))
    low, high = min(low, 0.0) if low < 0.3 * high else low, max(high, 0.0) if high < 0 else high
    if low == high:
        low, high = low - 0.5 * abs(low), high + 0.5 * abs(high)
    cells = min(
        max(round(2 * math.sqrt(max(one.numel for one in several))), _LEAST_CELLS), _MOST_CELLS
    )
    if reach / middle > _WIDE:
        below = 10.0 ** math.floor(math.log10(max(least, reach * 1e-12)))
        return _Axis(low, high, below, cells)
    return _Axis(low, high, 0.0, cells)


def _ends(histogram: Histogram) -> tuple[float, float]:
    """Ends of the bins beyond which a share of the elements that are not zero lies; 0 without."""
    there = histogram.middles != 0
    if not there.any():
        return 0.0, 0.0
    low, high = (edge[there] for edge in histogram.edges)
    ends = np.cumsum(histogram.counts[there])
    last = len(ends) - 1
    first, final = (np.searchsorted(ends, share * ends[-1]) for share in (_TAILS, 1 - _TAILS))
    return float(low[min(first, last)]), float(high[min(final, last)])


def _magnitudes(histogram: Histogram) -> tuple[float, float]:
    """Return the middle magnitude of what is not zero, and the one below which a twentieth lies."""
    sizes, counts = np.abs(histogram.middles), histogram.counts
    order = np.argsort(sizes)
    there = order[sizes[order] != 0]
    if not len(there):
        return 0.0, 0.0
    ends = np.cumsum(counts[there])
    middle, least = (sizes[there][np.searchsorted(ends, q * ends[-1])] for q in (0.5, 0.05))
    return float(middle), float(least)


def _ridge(step: int | None, stats: Statistics, axis: _Axis) -> _Ridge:
    """Lay the bins of a histogram into the cells of the axis, in parts where they lie across."""
    edges = axis.edges
    density, beyond = np.zeros(axis.num_cells), 0.0
    histogram = stats.histogram
    if histogram is not None and histogram.num_counted:
        low, high = histogram.edges
        kept = histogram.middles != 0
        counts = histogram.counts[kept].astype(float)
        total = counts.sum()
        if total:
            low, high = axis.place(low[kept]), axis.place(high[kept])
            inside = shared_out(edges, low, high, counts)
            density = inside / total / np.diff(edges)
            beyond = float(1 - inside.sum() / total)
    zeros = stats.zeros / stats.numel if stats.numel else 0.0
    return _Ridge(step, density, zeros, max(beyond, 0.0), stats.nonfinite)


def shared_out(edges: Array, low: Array, high: Array, counts: Array) -> Array:
    """Counts in cells, of bins that share theirs out evenly over their width."""
    order = np.argsort(low)
    low, high, counts = low[order], high[order], counts[order]
    points = np.unique(np.concatenate([low, high]))
    below = np.zeros(len(points))
    for side, sign in ((low, 1.0), (high, -1.0)):
        slope = counts / np.maximum(high - low, 1e-300)
        np.add.at(below, np.searchsorted(points, side), sign * slope)
    rates = np.cumsum(below)[:-1]
    sums = np.concatenate([[0.0], np.cumsum(rates * np.diff(points))])
    return np.diff(np.interp(edges, points, sums))


# ---------------------------------------------------------------------- drawn


def _draw_ridges(axes: Axes, ridges: Sequence[_Ridge], axis: _Axis) -> None:
    tidy(axes, grid="")
    axes.spines["left"].set_visible(False)
    edges = axis.edges
    middles = (edges[1:] + edges[:-1]) / 2
    shown = spread(len(ridges), 10)
    tall = _HEIGHT if len(ridges) > 3 else 0.9
    colors = color_map(MAGNITUDE)(np.linspace(0, 0.9, len(ridges)))
    for place, one in enumerate(ridges):
        base = len(ridges) - 1 - place
        line = base + tall * one.density / (one.density.max() or 1.0)
        axes.fill_between(
            middles, base, line, color=colors[place], alpha=0.85, linewidth=0, zorder=place + 2
        )
        axes.plot(middles, line, color="white", linewidth=0.7, zorder=place + 2.1)
        axes.plot(
            edges[[0, -1]], [base, base], color=colors[place], linewidth=0.4, zorder=place + 2
        )
        if place in shown or one.bad:
            _write_end(axes, one, base, 6 if len(ridges) > 12 else SMALL)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(-0.3, len(ridges) - 1 + tall + 0.2)
    names = [
        "all steps" if ridges[one].step is None else count(ridges[one].step or 0) for one in shown
    ]
    axes.set_yticks([len(ridges) - 1 - one for one in shown], names)
    axes.tick_params(axis="y", length=0)
    places, texts = axis.ticks()
    axes.set_xticks(places, texts)
    axes.axvline(0, color="#bbbbbb", linewidth=0.6, zorder=1)
    label(axes, "value")


def _write_end(axes: Axes, one: _Ridge, base: float, points: float) -> None:
    """The share of zeros of a ridge, and what is not finite, at its right end."""
    words = [f"{100 * one.zeros:.0f}% zero" if one.zeros >= 0.005 else ""]
    if one.bad:
        words.append(f"{count(one.bad)} NaN/Inf")
    said = " ".join(filter(None, words))
    if said:
        axes.text(
            1.01, base, said, transform=axes.get_yaxis_transform(), fontsize=points - 0.5,
            color=BAD if one.bad else GREY, va="bottom", ha="left", parse_math=False,
        )  # fmt: skip


def _words(
    run: Run, site: Site, ridges: Sequence[_Ridge], several: Sequence[Statistics], kept: int
) -> list[str]:
    low = min((one.min for one in several if one.num_finite), default=math.nan)
    high = max((one.max for one in several if one.num_finite), default=math.nan)
    bad = sum(ridge.bad for ridge in ridges)
    said = f"Range {number(low)} to {number(high)}."
    if bad:
        said += f" {count(bad)} NaN or Inf."
    beyond = max(ridge.beyond for ridge in ridges)
    if beyond > 1e-6:
        said += f" At most {number(100 * beyond)}% of a step lies beyond the axis."
    steps = len(run.over_steps(site, "numel")[0])
    if ridges[0].step is None:
        return [said, f"All {count(steps)} steps together: single ones are kept no longer."]
    drawn = f"{len(ridges)} of {plural(steps, 'step')}"
    if kept < steps:
        drawn += f"; histograms are kept of {count(kept)}"
    return [said, f"{drawn}." if len(ridges) < steps else ""]


def _nothing(several: Sequence[Statistics]) -> str:
    bad = sum(one.nonfinite for one in several)
    if bad:
        return f"no finite value but 0: {count(bad)} NaN or Inf"
    return "every value is 0" if any(one.numel for one in several) else "no element"
