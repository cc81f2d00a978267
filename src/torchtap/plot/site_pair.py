"""Two sites side by side: their numbers, and their histograms in one figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtap.core.errors import MissingExtraError, RunError
from torchtap.core.printed import Printed
from torchtap.core.printed_page import BLANK, Grid, Listed, Page
from torchtap.core.text import Cell, count, nonfinite, number, shape, share, size
from torchtap.plot.extras import drawn_tag
from torchtap.plot.style import BLUE, VERMILION, canvas, label, printable, tidy, write_head
from torchtap.stats.histogram import Histogram
from torchtap.stats.statistics import Statistics, sparkline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from torchtap.core.site import Site
    from torchtap.runs.run import Run

_CELLS = 40
_NUMBERS = ("min", "max", "mean", "std", "absmax", "l2")


@dataclass(frozen=True, slots=True, repr=False)
class SitePair(Printed):
    """Two sites side by side. Printing it shows a table; a notebook shows the histograms too.

    Attributes:
        names: of both.
        stats: of both.
    """

    names: tuple[str, str]
    stats: tuple[Statistics, Statistics]

    def figure(self, *, ax: Axes | None = None) -> Figure:
        """Draw both histograms over one another, in common cells, as shares of the elements.

        Each goes from the 1st to the 99th percentile of both; what is beyond stands in the outer
        cells.

        Args:
            ax: matplotlib axes to draw in; by default a figure of its own.

        Raises:
            RunError: one of them has no histogram, or nothing finite.
            MissingExtraError: matplotlib is not installed.
        """
        both = [one.histogram for one in self.stats]
        for name, one in zip(self.names, both, strict=True):
            if one is None or not one.num_counted:
                raise RunError(
                    f"{name} has no histogram of this step: nothing was finite, or it is kept no "
                    f"longer. Watch with a larger tt.Stats(keep=...)."
                )
        histograms = [one for one in both if one is not None]
        edges = common_edges(histograms)
        figure, axes = canvas(ax, 3.0)
        for one, name, color in zip(histograms, self.names, (BLUE, VERMILION), strict=True):
            axes.stairs(
                shares_in(one, edges), edges, fill=True, alpha=0.35, color=color,
                label=printable(name),
            )  # fmt: skip
            axes.stairs(shares_in(one, edges), edges, color=color, linewidth=1.2)
        tidy(axes)
        axes.set_ylim(bottom=0)
        legend = axes.legend(fontsize=7, frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)
        label(axes, "value", "share of the elements")
        write_head(axes, "Two sites, in common cells", ["Outer cells hold what lies beyond."])
        return figure

    def _page(self) -> Page:
        rows: list[tuple[str | Cell, ...]] = [
            ("shape", *(shape(one.shape) for one in self.stats)),
            ("dtype", *(one.dtype for one in self.stats)),
            ("bytes", *(size(one.nbytes) for one in self.stats)),
            *((name, *(_number(one, name) for one in self.stats)) for name in _NUMBERS),
            ("zeros", *(share(one.zeros, one.numel) for one in self.stats)),
            ("elements", *(count(one.numel) for one in self.stats)),
            ("NaN/Inf", *(nonfinite(one.nan, one.posinf, one.neginf) for one in self.stats)),
            ("histogram", *map(sparkline, self.stats)),
        ]
        grid = Grid(rows, ("", *self.names), "lrr", elastic={1: 20, 2: 20})
        notes = [
            (name, note)
            for name, one in zip(self.names, self.stats, strict=True)
            for note in one.notes
        ]
        return Page(grid, *((BLANK, Listed(notes)) if notes else ()))

    def _repr_html_(self) -> str:
        table = self._page().html()
        try:
            return table + drawn_tag(self.figure(), f"Histograms of {' and '.join(self.names)}")
        except (RunError, MissingExtraError):
            return table


def pair(
    run: Run,
    first: str | Site,
    second: str | Site,
    *,
    step: int | None = None,
    other: Run | None = None,
) -> SitePair:
    """Compare two sites of a run: range, mean, std, NaN, and histograms over one another.

    Args:
        run: any run.
        first: a site.
        second: another one.
        step: which; by default the last of each.
        other: the run of the second; by default the same.

    Raises:
        SiteError: nothing was recorded or measured there.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.ReLU())
        >>> with tt.watch(model, to=tt.Stats()) as w:
        ...     _ = model(torch.tensor([-1.0, 0.0, 1.0]))
        >>> two = tt.plot.pair(w.run, "0:output", "1:output")
        >>> two.stats[0].min < two.stats[1].min == 0
        True
    """
    another = run if other is None else other
    stats = run.stats(first, step=step), another.stats(second, step=step)
    names = str(first), str(second)
    if names[0] == names[1]:
        names = f"{names[0]}, first", f"{names[1]}, other"
    return SitePair(names, stats)


def _number(stats: Statistics, name: str) -> str:
    return number(getattr(stats, name)) if stats.num_finite else "-"


def common_edges(histograms: list[Histogram]) -> NDArray[np.float64]:
    """Ends of equal cells from the lowest 1st to the highest 99th percentile, ``float64[41]``."""
    low = min(histogram.quantile(0.01) for histogram in histograms)
    high = max(histogram.quantile(0.99) for histogram in histograms)
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, _CELLS + 1)


def shares_in(histogram: Histogram, edges: NDArray[np.float64]) -> Any:
    """Share of the elements in each cell; what is beyond stands in the outer ones."""
    cells = np.clip(np.searchsorted(edges, histogram.middles, side="right") - 1, 0, len(edges) - 2)
    counts = np.bincount(cells, weights=histogram.counts, minlength=len(edges) - 1)
    return counts / histogram.num_counted
