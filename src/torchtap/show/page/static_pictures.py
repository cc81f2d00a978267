"""Pictures that stand in the page itself, as SVG, and need no script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from torchtap.core.text import clean, elide, number
from torchtap.show.page.buckets import Buckets, Floats

_POINTS, _WIDTH, _HEIGHT = 48, 96, 20
_DECADES = 12


def safe(text: str) -> str:
    """Escape a text of the user's for HTML, also in attributes; control characters are shown."""
    return escape(clean(text))


def sparkline(values: Floats, bad: Floats, label: str) -> str:
    """Draw a number over the steps as a small line, with a mark where elements were not finite.

    Args:
        values: ``float64[steps]``; the line has a gap where they are NaN.
        bad: how many elements were not finite, ``float64[steps]``.
        label: for programs that read the page aloud.
    """
    buckets = Buckets.of(range(len(values)), _POINTS)
    low, high = buckets.extremes(values)
    finite = np.concatenate([low, high])
    finite = finite[np.isfinite(finite)]
    path = ""
    if finite.size:
        bottom, top = float(finite.min()), float(finite.max())
        scale = (_HEIGHT - 4) / (top - bottom) if top > bottom else 0.0
        step = _WIDTH / max(len(low) - 1, 1)
        points = [
            (round(n * step), _row(one, bottom, scale), _row(two, bottom, scale))
            for n, (one, two) in enumerate(zip(low.tolist(), high.tolist(), strict=True))
        ]
        path = _zigzag(points)
    marks = np.flatnonzero(np.nan_to_num(buckets.extremes(bad)[1]) > 0)
    ticks = "".join(f"M{round(n * _WIDTH / max(len(low) - 1, 1))} 20v-5" for n in marks.tolist())
    return (
        f'<svg class="spark" width="{_WIDTH}" height="{_HEIGHT}" viewBox="-1 0 {_WIDTH + 2} '
        f'{_HEIGHT}" role="img" aria-label="{safe(label)}"><path d="{path}"/>'
        + (f'<path class="bad" d="{ticks}"/>' if ticks else "")
        + "</svg>"
    )


def _row(value: float, bottom: float, scale: float) -> int | None:
    if not math.isfinite(value):
        return None
    # A constant lies in the middle.
    return round(_HEIGHT - 2 - (value - bottom) * scale) if scale else _HEIGHT // 2


def _zigzag(points: Iterable[tuple[int, int | None, int | None]]) -> str:
    """Return the path from the low to the high end of each part, with gaps."""
    path, is_drawn = [], False
    for x, low, high in points:
        if low is None or high is None:
            is_drawn = False
            continue
        path.append(f"{'L' if is_drawn else 'M'}{x} {low}" + (f"V{high}" if high != low else ""))
        is_drawn = True
    if len(path) == 1:
        path.append("h1")
    return "".join(path)


def flow_chart(lines: Sequence[tuple[str, str, Sequence[tuple[str, float]]]], title: str) -> str:
    """Draw magnitudes over depth on a logarithmic axis.

    Args:
        lines: name, class of its look, and text and value of each site, in the order of depth.
            Zeros stand on the floor of the chart, and what is not finite as a cross on top.
        title: for programs that read the page aloud.
    """
    seen = [value for _, _, own in lines for _, value in own if value > 0 and math.isfinite(value)]
    if not any(own for _, _, own in lines):
        return ""
    seen = seen or [1.0]
    top = math.ceil(math.log10(max(seen)) + 1e-9)
    bottom = max(math.floor(math.log10(min(seen))), top - _DECADES)
    bottom = min(bottom, top - 1)
    width, height, left = 720, 240, 48
    scale = (height - 48) / (top - bottom)

    def y(value: float) -> float:
        if not value > 0:
            return height - 20
        return 16 + (top - max(math.log10(value), bottom)) * scale

    every = max(1, (top - bottom) // 6)
    grid = [
        f'<path class="grid" d="M{left} {16 + (top - power) * scale:.0f}H{width}"/>'
        f'<text x="{left - 6}" y="{20 + (top - power) * scale:.0f}">{number(10.0**power)}</text>'
        for power in range(bottom, top + 1, every)
    ]
    drawn = []
    for name, look, own in lines:
        step = (width - left - 16) / max(len(own) - 1, 1)
        points = [(left + 8 + n * step, text, value) for n, (text, value) in enumerate(own)]
        path = "".join(
            f"{'L' if n else 'M'}{x:.1f} {y(value):.1f}"
            for n, (x, _, value) in enumerate([p for p in points if math.isfinite(p[2])])
        )
        dots = "".join(_dot(x, y(value), text, name, value) for x, text, value in points)
        drawn.append(f'<g class="{look}"><path d="{path}"/>{dots}</g>')
    named = max((own for _, _, own in lines), key=len)
    ends = (
        f'<text class="first" x="{left}" y="{height - 1}">{safe(elide(named[0][0], 50))}</text>'
        f'<text x="{width}" y="{height - 1}">{safe(elide(named[-1][0], 50))}</text>'
    )
    body = "".join((*grid, *drawn, ends))
    has_zero = any(value == 0 for _, _, own in lines for _, value in own)
    floor = f'<text x="{left - 6}" y="{height - 16}">0</text>' if has_zero else ""
    return (
        f'<svg class="flow" viewBox="0 0 {width} {height}" role="img" aria-label="{safe(title)}">'
        f"{body}{floor}</svg>"
    )


def _dot(x: float, y: float, text: str, name: str, value: float) -> str:
    said = f"<title>{safe(text)}: {safe(name)} {number(value)}</title>"
    if not math.isfinite(value):
        return f'<path class="cross" d="M{x - 3:.1f} 5l6 6m0-6l-6 6">{said}</path>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5">{said}</circle>'
