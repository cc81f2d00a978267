"""Walk to the nodes behind others, at any depth, as far as PyTorch can free them afterwards."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

MOST_NODES = 200_000
"""Nodes that are walked to."""
MOST_IN_A_ROW = 30_000
"""Nodes of a chain that are walked to. Once Python has seen them, PyTorch frees them one in
another, which overflows the stack (and ends the process) from about 50,000 on; those that Python
has not seen it frees in a loop."""


def nodes_behind(starts: Iterable[Any]) -> tuple[list[Any], bool]:
    """Return nodes and all those behind them, each once, and whether that is all of them.

    Nodes that are nearest by the fewest edges come first, where there are few; of many, those that
    were made last.
    """
    nodes = list(dict.fromkeys(starts))
    seen = set(nodes)
    for node in nodes:  # It grows while it is walked.
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                if len(nodes) >= MOST_IN_A_ROW:
                    return _of_many(nodes[: len(set(starts))])
                seen.add(following)
                nodes.append(following)
    return nodes, True


def _of_many(starts: list[Any]) -> tuple[list[Any], bool]:
    """Return what :func:`nodes_behind` does, without the ends of longer chains.

    Nodes are taken in the order in which they were made, the last first, so that the longest way to
    each is known before those behind it are looked at.
    """
    rows = dict.fromkeys(starts, 1)  # Node -> nodes in a row on the longest way to it.
    waiting = [(-_number(node), place, node) for place, node in enumerate(starts)]
    heapq.heapify(waiting)
    nodes = list(starts)
    is_all = True
    while waiting:
        _, _, node = heapq.heappop(waiting)
        row = rows[node] + 1
        for following, _ in node.next_functions:
            if following is None:
                continue
            if following in rows:
                rows[following] = max(rows[following], row)
            elif row > MOST_IN_A_ROW or len(nodes) >= MOST_NODES:
                is_all = False
            else:
                rows[following] = row
                nodes.append(following)
                if following.next_functions:  # A leaf has the highest number of all.
                    heapq.heappush(waiting, (-_number(following), len(nodes), following))
    return nodes, is_all


def _number(node: Any) -> int:
    return int(node._sequence_nr())
