"""One sheet: a picture, what decided about it, and what becomes of the score without that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchtap.core.text import number
from torchtap.plot.draw import draw_picture
from torchtap.plot.explained import Pane, draw_overlay, write_title
from torchtap.plot.extras import figure_class
from torchtap.plot.style import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    Array = NDArray[Any]

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # Okabe-Ito.
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
    """The picture with its classes, maps over it, and deletion curves: two rows.

    Args:
        picture: ``uint8[H, W, 3]``.
        caption: below it.
        panes: maps with the picture, each with a scale of its own.
        curves: name -> shares, scores, and those of random maps, ``[N, S]``: the same values at
            random places of the map, so that each is beside maps as coarse as it is.
        title: stands above.
        clip: share of the largest magnitudes of each map that get its last colour.
    """
    cols = -(-(len(panes) + 2) // 2)
    width = cols * _INCHES
    figure = figure_class()(figsize=(width, 2 * _INCHES + 1.6), dpi=110, layout="constrained")
    axes = [one for row in figure.subplots(2, cols, squeeze=False) for one in row]
    draw_picture(axes.pop(0), picture, caption, points=7.5)
    for pane in panes:
        axes[0].set_anchor("N")
        draw_overlay(axes.pop(0), pane, _INCHES, clip=clip)
    _draw_curves(axes.pop(0), curves)
    for rest in axes:
        rest.set_axis_off()
    write_title(figure, title, width)
    return figure


def _draw_curves(axes: Axes, curves: Mapping[str, tuple[Array, Array, Array]]) -> None:
    import numpy

    for color, (name, (shares, scores, controls)) in zip(_COLORS, curves.items(), strict=False):
        area = number(float(numpy.trapezoid(scores, shares)))
        axes.plot(shares, scores, color=color, linewidth=1.6, label=f"{name}, area {area}")
        area = number(float(numpy.trapezoid(controls.mean(0), shares)))
        for place, one in enumerate(controls):
            label = f"its values at random places, area {area}" if place == 0 else None
            axes.plot(shares, one, color=color, linewidth=0.9, linestyle="--", label=label)
    axes.set_title(
        "deletion, most important pixels first", fontsize=7, loc="left", family="monospace"
    )
    axes.set_xlabel("share of the pixels taken away", fontsize=7)
    axes.set_ylabel("probability", fontsize=7)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.4 * axes.get_ylim()[1])  # Room for the legend.
    axes.set_box_aspect(0.8)
    axes.tick_params(labelsize=6, colors=GREY)
    axes.legend(fontsize=6, frameon=False, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
