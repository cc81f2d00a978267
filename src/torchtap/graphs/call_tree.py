"""The nodes of a graph as a tree of calls of modules, with repeated parts folded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torchtap.graphs.nodes import INPUT, MODULE, OUTPUT, OUTSIDE, Call, Edge, Node

_LONGEST = 8
"""Most parts in what is repeated."""
_FEWEST_LEAVES = 3
"""Fewest repetitions of what holds no module."""
_Way = tuple[str, Any]
"""Target of an edge: inside, the next copy or elsewhere, and the node there."""


@dataclass(slots=True, eq=False)
class Part:
    """A node, or a call of a module with what ran in it.

    Attributes:
        number: place in the order in which parts begin.
        node: the node, ``None`` of a call.
        call: the call, ``None`` of a node.
        children: what ran in the call, in order.
        times: how many alike follow each other, of which this is the first.
        copies: the further ones, which are not shown.
        signature: two parts with equal ones look alike.
    """

    number: int
    node: Node | None = None
    call: Call | None = None
    children: list[Part] = field(default_factory=list)
    times: int = 1
    copies: list[Part] = field(default_factory=list)
    signature: int = 0

    def nodes(self) -> Iterator[Node]:
        """Yield the nodes of the part and of all below, without copies."""
        todo = [self]
        while todo:
            part = todo.pop()
            if part.node is not None:
                yield part.node
            todo += reversed(part.children)

    @property
    def is_module(self) -> bool:
        """Return whether it is a call of a module, or a module that is shown as a node."""
        return self.call is not None or (self.node is not None and self.node.kind == MODULE)


def build_tree(order: Sequence[Node], calls: Sequence[Call]) -> Part:
    """Return the tree of a graph: the root is what ran outside of all calls.

    Args:
        order: nodes in the order of the forward.
        calls: of modules.
    """
    root = Part(-1)
    parts: dict[int, Part] = {OUTSIDE: root}
    for number, node in enumerate(order):
        # A module that is one node has a call of its own, and stands in the one above.
        at = calls[node.call].above if node.kind == MODULE else node.call
        _part_of(at, number, calls, parts).children.append(Part(number, node=node))
    _unwrap(root)
    numbers: dict[Any, int] = {}
    for part in reversed(list(_calls_first(root))):
        part.signature = numbers.setdefault(_look(part), len(numbers))
    return root


def _part_of(call: int, number: int, calls: Sequence[Call], parts: dict[int, Part]) -> Part:
    """Return the part of a call; it and those around it are made where they are new."""
    new = []
    while call not in parts:
        new.append(call)
        call = calls[call].above
    part = parts[call]
    for one in reversed(new):
        inner = parts[one] = Part(number, call=calls[one])
        part.children.append(inner)
        part = inner
    return part


def _unwrap(root: Part) -> None:
    """Put the children of a call around all that the model did at the top."""
    calls = [part for part in root.children if part.call is not None]
    while len(calls) == 1 and calls[0].call is not None and not calls[0].call.path:
        outer = calls[0]
        place = root.children.index(outer)
        root.children[place : place + 1] = outer.children
        calls = [part for part in outer.children if part.call is not None]
        if not any(part.call is not None and not part.call.path for part in calls):
            break


def _calls_first(root: Part) -> Iterator[Part]:
    todo = [root]
    while todo:
        part = todo.pop()
        yield part
        todo += part.children


def _look(part: Part) -> Any:
    if part.node is not None:
        node = part.node
        held = tuple((one.name, one.type, one.state) for one in node.saved)
        return node.name, node.kind, node.types, held, node.hooks, node.cut_slots
    kind = part.call.type if part.call is not None else ""
    raised = part.call is not None and part.call.has_raised
    return kind, raised, tuple(child.signature for child in part.children)


def fold_repeats(root: Part, arrows: Iterable[Edge]) -> None:
    """Let the first of several equal parts that feed each other alike stand for all of them.

    Args:
        root: the tree.
        arrows: edges between nodes, in the direction of the forward.
    """
    wires = _Wires(arrows, {node.id: _end(node) for node in root.nodes()})
    todo = [root]
    while todo:
        part = todo.pop()
        part.children = _folded(part.children, wires)
        todo += part.children


def _end(node: Node) -> Any:
    """Return the key of a node; that of an input or output of the model leaves its number out.

    Each of the blocks in a row may take or return one of its own, as a key of a cache.
    """
    if node.kind not in (INPUT, OUTPUT):
        return node.id
    return node.kind, re.sub(r"\d+", "#", node.path), node.types


class _Wires:
    """Tells whether copies of a part are joined to what is around them in the same way.

    Args:
        arrows: edges between nodes, in the direction of the forward.
        ends: node -> what a copy may have another one of in its place.
    """

    def __init__(self, arrows: Iterable[Edge], ends: Mapping[int, Any]) -> None:
        self._ends = ends
        self._into: dict[int, list[int]] = {}
        self._out: dict[int, list[int]] = {}
        for arrow in arrows:
            self._into.setdefault(arrow.target, []).append(arrow.source)
            self._out.setdefault(arrow.source, []).append(arrow.target)

    def num_alike(self, nodes_of: Callable[[int], Iterable[int]], times: int) -> int:
        """Return how many copies in a row feed the next one, all in the same way; from 1.

        Args:
            nodes_of: number of a copy -> its nodes, in the same order; asked until one differs.
            times: how many copies there are.
        """
        copies = _Copies(nodes_of, times)
        for number in range(1, times):
            into, before = (self._ways(self._into, copies, n, -1) for n in (number, number - 1))
            out = self._ways(self._out, copies, number - 1, 1)
            last = self._ways(self._out, copies, number - 2, 1) if number > 1 else out
            if number == 1:  # What the second gets from the first, the first got from elsewhere.
                into, before = _loosely(into), _loosely(before)
            if (
                into != before
                or out != last
                or not any(way[0] == _NEXT for ways in out for way in ways)
            ):
                return number
        return times

    def _ways(
        self, edges: Mapping[int, Sequence[int]], copies: _Copies, number: int, step: int
    ) -> list[list[_Way]]:
        """Return where each edge of a copy's nodes leads: inside, to the next copy or elsewhere."""
        inside, beside = copies.places(number), copies.places(number + step)
        of_children = []
        for node in inside:
            ways = list[_Way]()
            for other in edges.get(node, ()):
                if other in inside:
                    ways.append((_INSIDE, inside[other]))
                elif other in beside:
                    ways.append((_NEXT, beside[other]))
                else:
                    ways.append((_ELSEWHERE, self._ends.get(other, other)))
            # Inputs of a node have an order; its users are met in the order of a walk.
            of_children.append(sorted(ways, key=repr) if step > 0 else ways)
        return of_children


class _Copies:
    """The places of nodes in copies of a part, looked up when they are asked for."""

    def __init__(self, nodes_of: Callable[[int], Iterable[int]], times: int) -> None:
        self._nodes_of = nodes_of
        self._times = times
        self._known: dict[int, dict[int, int]] = {}

    def places(self, number: int) -> dict[int, int]:
        """Return node -> its place in a copy, in the order of places; empty of no copy."""
        if not 0 <= number < self._times:
            return {}
        if number not in self._known:
            nodes = enumerate(self._nodes_of(number))
            self._known[number] = {node: place for place, node in nodes}
        return self._known[number]


_INSIDE, _NEXT, _ELSEWHERE = "inside", "next", "elsewhere"


def _loosely(ways: Sequence[Sequence[_Way]]) -> list[list[_Way]]:
    return [[way if way[0] == _INSIDE else (_ELSEWHERE, 0) for way in node] for node in ways]


def _folded(parts: Sequence[Part], wires: _Wires) -> list[Part]:
    runs = _Runs([part.signature for part in parts])
    kept, place = list[Part](), 0
    while place < len(parts):
        length, times = runs.longest(place)
        if times > 1 and _is_worth(parts[place : place + length], times):
            times = wires.num_alike(partial(_nodes_of_copy, parts, place, length), times)
        if times < 2 or not _is_worth(parts[place : place + length], times):
            kept.append(parts[place])
            place += 1
            continue
        for offset in range(length):
            first = parts[place + offset]
            first.times = times
            first.copies = [parts[place + offset + length * n] for n in range(1, times)]
            kept.append(first)
        place += length * times
    return kept


def _nodes_of_copy(parts: Sequence[Part], place: int, length: int, number: int) -> Iterator[int]:
    start = place + length * number
    for part in parts[start : start + length]:
        yield from (node.id for node in part.nodes())


def _is_worth(parts: Sequence[Part], times: int) -> bool:
    return times >= (2 if any(part.call is not None for part in parts) else _FEWEST_LEAVES)


class _Runs:
    """Tells the repetitions in a row of signatures.

    Args:
        signs: a signature each.
    """

    def __init__(self, signs: Sequence[int]) -> None:
        # Length -> from each place on, how many are equal to the one that far behind.
        self._equal = {length: [0] * len(signs) for length in range(1, _LONGEST + 1)}
        for length, equal in self._equal.items():
            for place in range(len(signs) - length - 1, -1, -1):
                if signs[place] == signs[place + length]:
                    equal[place] = equal[place + 1] + 1

    def longest(self, start: int) -> tuple[int, int]:
        """Return length and times of the repetition from a place on that covers most."""
        best = (1, 1)
        for length, equal in self._equal.items():
            times = equal[start] // length + 1
            if times > 1 and length * times > best[0] * best[1]:
                best = (length, times)
        return best
