"""Figures of how far a map can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchtap.core.text import number
from torchtap.plot.explained import Pane, draw_map, heading_of, write_title
from torchtap.plot.extras import figure_class
from torchtap.plot.heat import limits_of
from torchtap.plot.style import BLUE, DPI, GREY, SMALL, VERMILION, label, tidy, write_head

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    Array = NDArray[Any]

_COLORS = {"deletion": VERMILION, "insertion": BLUE}
_DOES = {"deletion": "taken away", "insertion": "put in"}
_INCHES = 2.9


def checked_figure(
    curves: Mapping[str, tuple[Array, Array, Array, float]],
    maps: Mapping[str, Array],
    *,
    title: str,
    of: str,
    note: str,
) -> Figure:
    """Curves with those of random maps in grey, and maps, each with a scale of its own.

    Args:
        curves: ``deletion`` and ``insertion``: shares, scores, those of random maps, the area.
        maps: heading -> map, the first of them the one that was checked.
        title: stands above.
        of: what the curves are of.
        note: which row it is.
    """
    cols = max(len(curves) + len(maps), 1)
    width = max(cols * _INCHES, 5.4)
    figure = figure_class()(figsize=(width, _INCHES + 0.95), dpi=DPI, layout="constrained")
    axes = list(figure.subplots(1, cols, squeeze=False)[0])
    for name, (shares, scores, controls, area) in curves.items():
        draw_curve(
            axes=axes.pop(0),
            name=name,
            shares=shares,
            scores=scores,
            controls=controls,
            area=area,
            of=of,
        )
    for name, values in maps.items():
        # Maps of other weights are of another size altogether: each has its own colours.
        pane = Pane(values, heading_of(name, values))
        draw_map(axes.pop(0), pane, limits_of([values]), width / cols)
    for rest in axes:
        rest.set_axis_off()
    write_title(figure, f"{title}{f', {note}' if note else ''}", width)
    return figure


def draw_curve(
    axes: Axes, name: str, shares: Array, scores: Array, controls: Array, area: float, of: str
) -> None:
    """One curve, the area below it coloured, and those of random maps."""
    import numpy

    color = _COLORS[name]
    for place, control in enumerate(controls):
        label_of = "as coarse, at random" if place == 0 else None
        axes.plot(shares, control, color="#999999", linewidth=0.9, linestyle="--", label=label_of)
    axes.fill_between(shares, 0, scores, color=color, alpha=0.15, linewidth=0)
    axes.plot(shares, scores, color=color, linewidth=1.6, label="this map")
    said = f"area {number(area)}"
    if len(controls):
        mean = float(numpy.trapezoid(controls, shares, axis=1).mean())
        said += f", at random {number(mean)}"
    tidy(axes)
    axes.set_box_aspect(1)
    axes.set_anchor("N")
    label(axes, f"share of the places {_DOES[name]}", of)
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=SMALL - 0.5, frameon=False, labelcolor=GREY)
    write_head(axes, name.capitalize(), [said], room=_INCHES, points=8.5)
