"""A drawing as a matplotlib figure that no global state knows of."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchtap.core.errors import MissingExtraError
from torchtap.graphs.pictures.colors import FRAME, INK, LOOKS, PAGE, SOFT
from torchtap.graphs.pictures.drawing import LINE, Drawing, DrawnArrow, DrawnBox, Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCH = 72.0
"""Pixels of a drawing in an inch of the figure."""
_MOST_INCHES = 300.0


def to_figure(drawing: Drawing, theme: str = "light") -> Figure:
    """Draw on a figure of the size of the drawing.

    Args:
        drawing: what to draw.
        theme: ``dark``; anything else is light.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "Drawing a graph as PNG needs matplotlib. Install it: pip install 'torchtap[plot]'."
        ) from error
    theme = "dark" if theme == "dark" else "light"
    scale = min(1.0, _MOST_INCHES * _INCH / max(drawing.width, drawing.height))
    size = (drawing.width * scale / _INCH, drawing.height * scale / _INCH)
    figure = Figure(figsize=size, dpi=_INCH * 1.5, facecolor=PAGE[theme])
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)
    for frame in drawing.frames:
        corner = (frame.x, frame.y)
        size = (frame.width, frame.height)
        _rectangle(axes, corner, size, "none", stroke=FRAME, dash="3 3", radius=5)
        _text(axes, frame.x + 6, frame.y + 11, frame.label, INK[theme], "left", is_bold=True)
    for arrow in drawing.arrows:
        _arrow(axes, arrow, SOFT[theme])
    for box in drawing.boxes:
        _box(axes, box, theme)
    for text in drawing.texts:
        color = INK[theme] if text.is_strong else SOFT[theme]
        side = "center" if text.is_centred else "left"
        behind = "none" if text.is_strong else PAGE[theme]
        _text(axes, text.x, text.y, text.text, color, side, is_bold=text.is_strong, behind=behind)
    for x, y, kind in drawing.legend:
        look = LOOKS[kind]
        fill = look.dark if theme == "dark" else look.light
        _rectangle(axes, (x, y), (16, 10), fill, stroke=look.stroke, dash=look.dash, radius=2)
        _text(axes, x + 21, y + 9, look.meaning, SOFT[theme], "left")
    return figure


def _box(axes: Axes, box: DrawnBox, theme: str) -> None:
    look = LOOKS[box.box.kind]
    fill = look.dark if theme == "dark" else look.light
    corner, middle = (box.x, box.y), box.x + box.width / 2
    size = (box.width, box.height)
    _rectangle(axes, corner, size, fill, stroke=look.stroke, dash=look.dash, radius=look.radius)
    for number, line in enumerate(box.lines):
        color = INK[theme] if number == 0 else SOFT[theme]
        y = box.y + LINE * (number + 1) - 1
        _text(axes, middle, y, line, color, "center", is_bold=number == 0)


def _rectangle(
    axes: Axes,
    corner: Point,
    size: Point,
    fill: str,
    *,
    stroke: str,
    dash: str,
    radius: float,
) -> None:
    from matplotlib.patches import FancyBboxPatch

    width, height = size
    style: Any = (0, tuple(map(float, dash.split()))) if dash else "solid"
    round_corners = f"round,pad=0,rounding_size={min(radius, height / 2, width / 2)}"
    axes.add_patch(
        FancyBboxPatch(
            corner, width, height, round_corners, fc=fill, ec=stroke, lw=0.9, ls=style, zorder=2
        )
    )


def _text(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    color: str,
    side: str,
    *,
    is_bold: bool = False,
    behind: str = "none",
) -> None:
    axes.text(
        *(x, y, text),
        color=color,
        ha=side,
        va="baseline",
        fontsize=9.6,
        family="monospace",
        weight="bold" if is_bold else "normal",
        parse_math=False,
        bbox={"fc": behind, "ec": "none", "pad": 0.6, "alpha": 0.85},
        zorder=3,
    )


def _arrow(axes: Axes, arrow: DrawnArrow, color: str) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    style: Any = (0, (5, 3)) if arrow.is_back else "solid"
    points, codes = _curve(arrow.points)
    axes.add_patch(
        FancyArrowPatch(
            path=Path(points, codes),
            arrowstyle="-|>,head_width=2.2,head_length=4",
            color=color,
            fill=False,
            lw=0.8,
            ls=style,
            shrinkA=0,
            shrinkB=0,
            zorder=1,
        )
    )


def _curve(points: Sequence[Point]) -> tuple[list[Point], list[int]]:
    from matplotlib.path import Path

    found, codes = [points[0]], [int(Path.MOVETO)]
    for (x, y), (end_x, end_y) in itertools.pairwise(points):
        middle = (y + end_y) / 2
        found += [(x, middle), (end_x, middle), (end_x, end_y)]
        codes += [int(Path.CURVE4)] * 3
    return found, codes
