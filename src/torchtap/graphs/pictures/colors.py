"""The look of each kind of box. Colours are those of Okabe and Ito (2008), as tints."""

from __future__ import annotations

from typing import NamedTuple

from torchtap.graphs.boxes_and_arrows import CALL, GROUP
from torchtap.graphs.nodes import (
    CHECKPOINT,
    COMPILED,
    FUNCTION,
    IN_PLACE,
    INPUT,
    MODULE,
    NOT_FINITE,
    OPERATION,
    OUTPUT,
    PARAMETER,
    RAISED,
    VIEW,
)


class Look(NamedTuple):
    """The look of boxes of one kind; none is told by its colour alone.

    Attributes:
        meaning: for the legend.
        light: fill on a light page.
        dark: fill on a dark page.
        stroke: border.
        dash: of the border, in pixels; empty for a solid one.
        radius: of the corners.
    """

    meaning: str
    light: str
    dark: str
    stroke: str
    dash: str = ""
    radius: int = 3


LOOKS = {
    OPERATION: Look("operation", "#f4f4f4", "#2b2b2b", "#777777"),
    VIEW: Look("view", "#ffffff", "#1c1c1c", "#999999", "4 3"),
    IN_PLACE: Look("in-place write into a view", "#fbe3d3", "#4a2a12", "#d55e00", "7 2"),
    PARAMETER: Look("parameter", "#d6ebf8", "#123a52", "#0072b2", radius=12),
    INPUT: Look("input", "#d5f0e6", "#0d3f30", "#009e73", radius=12),
    OUTPUT: Look("output", "#fdf6c9", "#4a4508", "#a89b00", radius=12),
    FUNCTION: Look("custom function", "#f6e2ee", "#46233a", "#cc79a7"),
    CHECKPOINT: Look("checkpoint", "#fdecc8", "#4a3608", "#e69f00", "2 2"),
    COMPILED: Look("compiled, not looked into", "#e4e0f2", "#2e2846", "#6a5aa8", "9 3"),
    MODULE: Look("module", "#e3f3fc", "#17384c", "#2b8cbe"),
    CALL: Look("module with more inside", "#cfe6f5", "#1d4a66", "#0072b2"),
    GROUP: Look("several operations", "#ececec", "#383838", "#555555", "6 3"),
    RAISED: Look("the forward raised here", "#f9d0c4", "#5c1a08", "#b03000", "7 2"),
    NOT_FINITE: Look("made the first NaN or Inf", "#f9d0c4", "#5c1a08", "#b03000", "3 2"),
}
INK = {"light": "#1a1a1a", "dark": "#ececec"}
SOFT = {"light": "#555555", "dark": "#b5b5b5"}
PAGE = {"light": "#ffffff", "dark": "#161616"}
FRAME = "#e69f00"
"""Color of the frame around parts that repeat."""
