"""Layers of boxes, and where each stands: Sugiyama's method.

Ranks and the order in each rank come from fast-sugiyama. Where boxes stand in their rank is decided
here, because it knows one width alone: each box goes to the mean of its neighbours, as near as the
others in its rank allow.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchtap.core.errors import MissingExtraError

_GAP = 26.0
_BEND = 12.0
"""Width of the place that an arrow takes in a rank that it passes."""
_SWEEPS = 12
_MANY = 1000
"""Edges up to which the slower and better way is taken."""
_STRAIGHT = 4.0
"""How much more it counts that a passing arrow is straight than that a box is near another."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of boxes.

    Attributes:
        places: centre of each box: x in pixels, and number of its rank from the top.
        routes: for each arrow, the points between its ends, in the same measures.
        width: in pixels.
        num_ranks: number of ranks.
    """

    places: list[tuple[float, int]]
    routes: dict[tuple[int, int], list[tuple[float, int]]]
    width: float
    num_ranks: int


def lay_out(
    num: int,
    arrows: Iterable[tuple[int, int]],
    widths: Sequence[float],
    above: Iterable[tuple[int, int]] = (),
) -> Layout:
    """Place boxes in ranks, so that all arrows point downwards.

    Args:
        num: number of boxes.
        arrows: (box, box), each from a lower number to a higher one.
        widths: of the boxes, in pixels.
        above: (box, box): the first stands in a rank above that of the second.

    Raises:
        MissingExtraError: fast-sugiyama is not installed.
    """
    wanted = sorted({(start, end) for start, end in arrows if start != end})
    ranks = _ranks(num, sorted({*wanted, *above}))
    chains, edges, owner = {}, list[tuple[int, int]](), list(range(num))
    for start, end in wanted:
        chain = [start]
        # An arrow that passes ranks gets a place in each of them, as if it were a box, so that
        # boxes make room for it.
        for rank in range(ranks[start] + 1, ranks[end]):
            chain.append(len(owner))
            owner.append(-1)
            ranks.append(rank)
        chain.append(end)
        chains[start, end] = chain
        edges += itertools.pairwise(chain)
    wide = [widths[one] if one >= 0 else _BEND for one in owner]
    rows = _rows(len(owner), edges, ranks)
    x = _positions(rows, edges, wide, [one < 0 for one in owner])
    left = min((x[n] - wide[n] / 2 for n in range(len(x))), default=0.0)
    right = max((x[n] + wide[n] / 2 for n in range(len(x))), default=0.0)
    places = [(x[n] - left, ranks[n]) for n in range(num)]
    routes = {
        ends: [(x[n] - left, ranks[n]) for n in chain[1:-1]] for ends, chain in chains.items()
    }
    return Layout(places, routes, right - left, max(ranks, default=-1) + 1)


def _ranks(num: int, arrows: Sequence[tuple[int, int]]) -> list[int]:
    """Return the rank of each box: arrows go to higher ranks, and are short."""
    ranks = [0] * num
    # Arrows lead to higher numbers: by their ends, each rank is final before it is read.
    for start, end in sorted(arrows, key=lambda arrow: arrow[1]):
        ranks[end] = max(ranks[end], ranks[start] + 1)
    # What may stand lower, and has no more arrows coming in than going out, stands right above what
    # it leads to: the arrows that get shorter are more than those that get longer.
    after: dict[int, list[int]] = {}
    entering = Counter(end for _, end in arrows)
    for start, end in arrows:
        after.setdefault(start, []).append(end)
    for box in reversed(range(num)):
        if box in after and entering[box] <= len(after[box]):
            ranks[box] = min(ranks[end] for end in after[box]) - 1
    lowest = min(ranks, default=0)
    return [rank - lowest for rank in ranks]


def _rows(num: int, edges: Sequence[tuple[int, int]], ranks: Sequence[int]) -> list[list[int]]:
    """Return the boxes of each rank, from left to right, so that few arrows cross."""
    try:
        from fast_sugiyama import from_edges
    except ImportError as error:
        raise MissingExtraError(
            "Laying out a graph needs fast-sugiyama. Install it: pip install 'torchtap[graph]'."
        ) from error
    keys: dict[int, tuple[int, float]] = {}
    # All edges lead to the next rank. "minimize" finds these very ranks, in a time that grows with
    # the square of their number; "down" finds nearly the same at once.
    ranking: Any = "minimize" if len(edges) <= _MANY else "down"
    layouts = from_edges(edges, check_layout=False, ranking_type=ranking) if edges else []
    components = [(min(n for n, _ in places), dict(places)) for places, *_ in layouts]
    for component, (_, places) in enumerate(sorted(components, key=lambda one: one[0])):
        for box, (x, _) in places.items():
            keys[box] = (component, x)  # type: ignore[index]
    rows: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for box in range(num):
        rows[ranks[box]].append(box)
    for row in rows:
        row.sort(key=lambda box: keys.get(box, (len(components), float(box))))
    return rows


def _positions(
    rows: Sequence[Sequence[int]],
    edges: Sequence[tuple[int, int]],
    wide: Sequence[float],
    is_bend: Sequence[bool],
) -> list[float]:
    above: dict[int, list[int]] = {}
    below: dict[int, list[int]] = {}
    for start, end in edges:
        above.setdefault(end, []).append(start)
        below.setdefault(start, []).append(end)
    x = [0.0] * len(wide)
    for row in rows:
        reach = 0.0
        for box in row:
            x[box] = reach + wide[box] / 2
            reach += wide[box] + _GAP
    for sweep in range(_SWEEPS):
        is_down = sweep % 2 == 0
        # The last sweeps look both ways, or the boxes would lean to the side that was swept last.
        both = sweep >= _SWEEPS - 2
        for row in rows if is_down else reversed(rows):
            _place(row, x, wide, is_bend, *_near(above, below, is_down=is_down, both=both))
    return x


def _near(
    above: Mapping[int, list[int]], below: Mapping[int, list[int]], *, is_down: bool, both: bool
) -> tuple[Mapping[int, list[int]], Mapping[int, list[int]]]:
    if both:
        return above, below
    return (above, {}) if is_down else (below, {})


def _place(
    row: Sequence[int],
    x: list[float],
    wide: Sequence[float],
    is_bend: Sequence[bool],
    one: Mapping[int, list[int]],
    other: Mapping[int, list[int]],
) -> None:
    """Move the boxes of a row to the means of their neighbours; those that collide, together."""
    blocks: list[
        tuple[float, float, list[int]]
    ] = []  # Mean of where the first wants to be, weight.
    offsets: dict[int, float] = {}
    reach = 0.0
    for place, box in enumerate(row):
        if place:
            last = row[place - 1]
            gap = _BEND if is_bend[box] and is_bend[last] else _GAP
            reach += (wide[last] + wide[box]) / 2 + gap
        offsets[box] = reach
        near = [*one.get(box, ()), *other.get(box, ())]
        wish = sum(x[n] for n in near) / len(near) if near else x[box]
        straight = is_bend[box] and all(is_bend[n] for n in near)
        weight = (_STRAIGHT if straight else 1.0) if near else 0.1
        # Less what must be left of it: blocks that want the same first place then stand side by
        # side.
        block = (wish - reach, weight, [box])
        # Blocks that would overlap become one, at the mean of their wishes (pool adjacent
        # violators).
        while blocks and blocks[-1][0] > block[0]:
            mean, heavy, boxes = blocks.pop()
            total = heavy + block[1]
            block = ((mean * heavy + block[0] * block[1]) / total, total, boxes + block[2])
        blocks.append(block)
    for mean, _, boxes in blocks:
        for box in boxes:
            x[box] = mean + offsets[box]
