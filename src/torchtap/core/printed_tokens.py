"""Words of a text with a number each, shown by colours."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from torchtap.core.text import breadth, clean, number

Color = tuple[int, int, int]

# Anchors of matplotlib's RdBu_r (low is blue) and viridis, between which colours are linear.
_SIGNED: tuple[Color, ...] = (
    (5, 48, 97),
    (67, 147, 195),
    (247, 247, 247),
    (214, 96, 77),
    (103, 0, 31),
)
_MAGNITUDE: tuple[Color, ...] = (
    (68, 1, 84),
    (59, 82, 139),
    (33, 145, 140),
    (94, 201, 98),
    (253, 231, 37),
)
_BAD: Color = (217, 0, 217)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens in a row, each before the colour of its weight.

    Weights with a sign are blue below zero and red above it, symmetric; magnitudes are viridis.
    A number that is not finite is magenta. Without colours each weight stands behind its token.

    Args:
        texts: the tokens.
        weights: one of each.
        reach: the magnitude of the last colour.
        is_signed: whether any weight of the map is below zero.
    """

    texts: Sequence[str]
    weights: Sequence[float]
    reach: float
    is_signed: bool

    def lines(self, width: int, *, color: bool) -> list[str]:
        """Return the tokens as lines of text."""
        broken: list[str] = []
        line, room = "", 0
        for text, weight in zip(map(clean, self.texts), self.weights, strict=True):
            plain = text if color else f"{text}({number(weight)}) "
            if line and room + breadth(plain) > width:
                broken.append(line.rstrip())
                line, room = "", 0
            line += _painted(plain, self._color(weight)) if color else plain
            room += breadth(plain)
        return [*broken, line if color else line.rstrip()]

    def html(self) -> str:
        """Return the tokens as HTML spans; the weight of each shows where the mouse rests."""
        spans = [
            f'<span style="background:rgb{back};color:rgb{_ink(back)}" '
            f'title="{escape(number(weight))}">{escape(clean(text))}</span>'
            for text, weight in zip(self.texts, self.weights, strict=True)
            for back in [self._color(weight)]
        ]
        style = "margin:0.3em 0;white-space:pre-wrap;line-height:1.7"
        return f'<p style="{style}">{"".join(spans)}</p>'

    def _color(self, weight: float) -> Color:
        if not math.isfinite(weight):
            return _BAD
        share = weight / self.reach if self.reach > 0 else 0.0
        if self.is_signed:
            return _between(_SIGNED, (share + 1) / 2)
        return _between(_MAGNITUDE, share)


def _between(anchors: Sequence[Color], place: float) -> Color:
    scaled = min(max(place, 0.0), 1.0) * (len(anchors) - 1)
    first = min(int(scaled), len(anchors) - 2)
    part = scaled - first
    low, high = anchors[first], anchors[first + 1]
    red, green, blue = (round(a + part * (b - a)) for a, b in zip(low, high, strict=True))
    return red, green, blue


def _ink(back: Color) -> Color:
    """Black or white, whichever reads better before the colour (luminance of ITU-R BT.601)."""
    red, green, blue = back
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 128 else (255, 255, 255)


def _painted(text: str, back: Color) -> str:
    from rich.color import Color as RichColor, ColorSystem
    from rich.style import Style

    is_true = os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    style = Style(color=RichColor.from_rgb(*_ink(back)), bgcolor=RichColor.from_rgb(*back))
    system = ColorSystem.TRUECOLOR if is_true else ColorSystem.EIGHT_BIT
    return style.render(text, color_system=system)
