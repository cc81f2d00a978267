"""Several panels in one figure: of its own, or in the place of axes that are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtap.plot.extras import figure_class
from torchtap.plot.style import DPI, WIDTH, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GAP = 0.09
"""Between panels in the place of axes, as a share of their side."""


def panels(
    ax: Axes | None,
    num: int,
    *,
    height: float,
    most_cols: int,
    one_height: float | None = None,
    width: float = WIDTH,
) -> tuple[Figure, list[Axes]]:
    """Axes side by side, and their figure.

    Args:
        ax: of the user's, in whose place they are put.
        num: how many.
        height: inches of a row of panels.
        most_cols: panels in a row.
        one_height: inches of a figure of one panel.
        width: inches of a figure.
    """
    if num == 1:
        figure, axes = canvas(ax, one_height or height, width=width)
        return figure, [axes]
    cols = min(num, most_cols)
    rows = -(-num // cols)
    cols = -(-num // rows)
    if ax is None:
        figure = figure_class()(figsize=(width, rows * height + 0.4), dpi=DPI, layout="constrained")
        grid = figure.subplots(rows, cols, squeeze=False)
        several = [one for row in grid for one in row]
        for one in several[num:]:
            one.set_axis_off()
        return figure, several[:num]
    figure, axes = canvas(ax, height)
    axes.set_axis_off()
    wide, tall = 1 / cols, 1 / rows
    return figure, [
        axes.inset_axes(
            (
                place % cols * wide,
                1 - (place // cols + 1) * tall,
                wide * (1 - _GAP * 2),
                tall * (1 - _GAP * 3),
            )
        )
        for place in range(num)
    ]
