"""Several panels in one figure: of its own, or in the place of axes that are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchtap.plot.extras import figure_class
from torchtap.plot.heat import Limits, color_name
from torchtap.plot.style import DPI, GREY, INK, TEXT, WIDTH, canvas, color_bar, wrapped

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
        engine: Any = figure.get_layout_engine()
        engine.set(h_pad=0.1, w_pad=0.06)
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


def shared_bar(figure: Figure, axes: Sequence[Axes], limits: Limits) -> None:
    """One bar of colours for all panels; none where they stand in the place of others.

    Args:
        figure: of the panels.
        axes: the panels.
        limits: of the first and the last colour.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    colors = ScalarMappable(Normalize(*limits), color_name(limits))
    if figure.axes and axes[0] in figure.axes:
        bar_of = list(axes) if len(axes) > 1 else axes[0]
        color_bar(axes[0], colors, ax=bar_of, shrink=0.7)


def title_above(figure: Figure, ax: Axes | None, title: str, said: str = "") -> None:
    """Write the title of several panels, and a line below it.

    Args:
        figure: of the panels.
        ax: axes of the user's, in whose place they stand, or none.
        title: above all.
        said: in grey.
    """
    if ax is not None:
        ax.set_title(title, loc="left", fontsize=9, color=INK, pad=26, parse_math=False)
        return
    room = 0.96 * figure.get_figwidth()
    lines = wrapped(title, room, 11)
    figure.suptitle("\n".join(lines), x=0.012, ha="left", fontsize=11, color=INK, parse_math=False)
    if said:
        figure.supxlabel(
            "\n".join(wrapped(said, room)), x=0.012, ha="left", fontsize=TEXT, color=GREY,
            parse_math=False,
        )  # fmt: skip
