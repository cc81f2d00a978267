"""Fewer points than there are, so that no extreme is lost; and that it is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torchtap.core.text import count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

MOST_SPANS = 800
"""Spans of steps of a line, each with its least and its largest value."""


def thinned(x: Array, y: Array, most: int = MOST_SPANS) -> tuple[Array, Array]:
    """Points of a line: of each of ``most`` spans the least and the largest, and both ends.

    Lines of at most ``2 * most`` points are returned as they are. What is not finite is left out
    of a span, unless nothing else is in it: a gap that is wider than a span stays.

    Args:
        x: ascending, ``float[N]``.
        y: ``float[N]``.
        most: spans.

    Returns:
        the points that are drawn, in their order.

    Example:
        >>> x, y = thinned(np.arange(10_000), np.eye(1, 10_000, 4321)[0], most=100)
        >>> len(x) <= 202, y.max()
        (True, np.float64(1.0))
    """
    if len(y) <= 2 * most:
        return x, y
    width = -(-len(y) // most)
    padded = np.full(-(-len(y) // width) * width, np.nan)
    padded[: len(y)] = y
    spans = padded.reshape(-1, width)
    finite = np.isfinite(spans)
    first = np.arange(len(spans)) * width
    least = first + np.where(finite, spans, np.inf).argmin(1)
    largest = first + np.where(finite, spans, -np.inf).argmax(1)
    places = np.unique(np.concatenate([[0], least, largest, [len(y) - 1]]))
    return x[places], y[places]


def thinned_words(steps: int, most: int = MOST_SPANS) -> str:
    """Return how a line of so many steps was thinned; empty where it was not."""
    if steps <= 2 * most:
        return ""
    spans = -(-steps // -(-steps // most))
    return f"{count(steps)} steps drawn as {count(spans)} spans, the least and the largest of each."


def spread(total: int, most: int) -> list[int]:
    """Numbers of at most ``most`` of ``total`` things, evenly, the first and the last among them.

    Example:
        >>> spread(3, 8), spread(500, 5)
        ([0, 1, 2], [0, 125, 250, 374, 499])
    """
    if total <= most:
        return list(range(total))
    return np.unique(np.linspace(0, total - 1, most).round().astype(int)).tolist()  # type: ignore[no-any-return]
