"""One sheet: a picture, what decided about it, and what becomes of the score without that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchtap.core.text import number
from torchtap.plot.draw import draw_picture
from torchtap.plot.explained import Pane, draw_overlay
from torchtap.plot.extras import figure_class
from torchtap.plot.panels import title_above
from torchtap.plot.style import CATEGORIES, DPI, GREY, SMALL, label, tidy, write_head

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    Array = NDArray[Any]

_INCHES = 3.3


def explained_sheet(
    picture: Array,
    caption: str,
    panes: Sequence[Pane],
    curves: Mapping[str, tuple[Array, Array, Array]],
    *,
    title: str,
    clip: float,
) -> Figure:
    """Return the picture with its classes, maps over it, and deletion curves: two rows.

    Args:
        picture: ``uint8[H, W, 3]``.
        caption: below all.
        panes: maps with the picture, each with a scale of its own.
        curves: name -> shares, scores, and those of random maps, ``[N, S]``: the same values at
            random places of the map, so that each is beside maps as coarse as it is. Their mean is
            drawn dashed, and from the least to the largest of them a band.
        title: stands above.
        clip: share of the largest magnitudes of each map that get its last colour.
    """
    cols = -(-(len(panes) + 2) // 2)
    width = cols * _INCHES
    figure = figure_class()(figsize=(width, 2 * _INCHES + 1.55), dpi=DPI, layout="constrained")
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.08, h_pad=0.06)
    axes = [one for row in figure.subplots(2, cols, squeeze=False) for one in row]
    draw_picture(axes[0], picture, points=8.5)
    for place, pane in zip(axes[1:], panes, strict=False):
        draw_overlay(place, pane, _INCHES, clip=clip)
    _draw_curves(axes[len(panes) + 1], curves)
    for rest in axes[len(panes) + 2 :]:
        rest.set_axis_off()
    title_above(figure, None, title, caption)
    return figure


def _draw_curves(panel: Axes, curves: Mapping[str, tuple[Array, Array, Array]]) -> None:
    import numpy

    # Its labels stand inside of the place of a picture, so that all panels are alike.
    panel.set_axis_off()
    panel.set_box_aspect(1)
    panel.set_anchor("N")
    said = "below its dashed line a map is better than chance"
    write_head(panel, "Deletion, most important first", [said], room=_INCHES, points=8.5)
    axes = panel.inset_axes((0.13, 0.1, 0.87, 0.9))
    tidy(axes)
    for color, (name, (shares, scores, controls)) in zip(CATEGORIES, curves.items(), strict=False):
        area = number(float(numpy.trapezoid(scores, shares)))
        axes.plot(shares, scores, color=color, linewidth=1.7, label=f"{name}, area {area}")
        mean = controls.mean(0)
        area = number(float(numpy.trapezoid(mean, shares)))
        axes.fill_between(
            shares, controls.min(0), controls.max(0), color=color, alpha=0.13, linewidth=0
        )
        axes.plot(
            shares, mean, color=color, linewidth=1.0, linestyle="--",
            label=f"as coarse, at random, area {area}",
        )  # fmt: skip
    label(axes, "share of the picture taken away", "probability")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.45 * axes.get_ylim()[1])  # Room for the legend.
    axes.legend(fontsize=SMALL - 0.5, frameon=False, loc="upper right", labelcolor=GREY)
