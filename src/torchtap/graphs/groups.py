"""Find the module that made each node, in a watched forward or from the parameters."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchtap.core.torch_nodes import VIEWS_AND_CASTS
from torchtap.graphs.nodes import OUTSIDE, PARAMETER, Call, Edge, Node

INFERRED = (
    "modules were concluded: an operation counts for the module whose parameters it uses, one "
    "without parameters for the innermost module around its neighbours. "
    "tt.graph(model, *inputs, autograd=True) watches the forward, and knows"
)


def by_sequence(
    nodes: Sequence[Node],
    edges: Sequence[Edge],
    events: Sequence[tuple[int, int]],
    calls: Sequence[Call],
) -> list[Node]:
    """Put each node into the call that ran when it was made.

    Args:
        nodes: of one thread.
        edges: between them.
        events: (sequence number, call) at each moment when a module was entered or left: the next
            node to be made, and the call that ran from then on.
        calls: all of them.
    """
    starts = [start for start, _ in events]
    placed = []
    for node in nodes:
        if node.sequence >= 0 and events:
            at = bisect.bisect_right(starts, node.sequence) - 1
            call = events[at][1] if at >= 0 else OUTSIDE
            path = calls[call].path if call != OUTSIDE else ""
            node = replace(node, call=call, path=path)
        placed.append(node)
    return leaves_to_users(placed, edges)


def by_parameters(
    nodes: Sequence[Node], edges: Sequence[Edge], types: Mapping[str, str]
) -> tuple[list[Node], list[Call]]:
    """Conclude which module made each node.

    A node that uses a parameter, also through views and casts of it, counts for the module that
    owns the parameter. All others were made between two of these.

    Args:
        nodes: of a graph.
        edges: of it.
        types: path of a module -> name of its class.
    """
    if not types:
        return list(nodes), []
    owners = _owners(nodes, edges)
    made = sorted((node for node in nodes if node.sequence >= 0), key=lambda node: node.sequence)
    places = {path: place for place, path in enumerate(types)}
    paths = _between([owners.get(node.id) for node in made], places)
    builder = _Calls(types)
    placed = list(nodes)
    for node, path in zip(made, paths, strict=True):
        call = builder.enter(path)
        placed[node.id] = replace(node, path=path or "", call=call)
    return leaves_to_users(placed, edges), builder.calls


def leaves_to_users(nodes: Sequence[Node], edges: Sequence[Edge]) -> list[Node]:
    """Leaves belong to the call of the first node that uses them."""
    first: dict[int, Node] = {}
    for edge in edges:
        target, source = nodes[edge.target], nodes[edge.source]
        if target.sequence >= 0 or source.sequence < 0:
            continue
        known = first.get(target.id)
        if known is None or source.sequence < known.sequence:
            first[target.id] = source
    return [replace(node, call=first[node.id].call) if node.id in first else node for node in nodes]


def _owners(nodes: Sequence[Node], edges: Sequence[Edge]) -> dict[int, str]:
    """Node -> path of the module whose parameter it uses; none where several do."""
    users: dict[int, list[int]] = {}
    for edge in edges:
        users.setdefault(edge.target, []).append(edge.source)
    counts: dict[int, Counter[str]] = {}
    for leaf in nodes:
        # The path of a parameter that no model named is empty, and one that is shared has several.
        if leaf.kind != PARAMETER or not leaf.path or leaf.note:
            continue
        owner = leaf.path.rpartition(".")[0]
        todo = [leaf.id]
        while todo:
            for user in users.get(todo.pop(), ()):
                counts.setdefault(user, Counter())[owner] += 1
                if nodes[user].name in VIEWS_AND_CASTS:
                    todo.append(user)
    return {node: _common(list(owners)) for node, owners in counts.items()}


def _between(known: Sequence[str | None], order: Mapping[str, int]) -> list[str | None]:
    """Return paths of nodes in the order of their making; between two, the module around both.

    Args:
        known: path of each node that uses a parameter.
        order: place of each module in ``named_modules()``.
    """
    places = [place for place, path in enumerate(known) if path is not None]
    owners: list[str | None] = list(known)
    for left, right in itertools.pairwise(places):
        before, after = str(known[left]), str(known[right])
        around = _common([before, after])
        # Going back in the order of the modules, another call of the one around may have begun; and
        # whether two uses of one module are the same call is not known.
        is_back = order.get(after, -1) <= order.get(before, -1)
        if around and (is_back or around in (before, after)):
            around = around.rpartition(".")[0]
        while around and around not in order:  # A list of modules, which is never called.
            around = around.rpartition(".")[0]
        for place in range(left + 1, right):
            owners[place] = around
    return owners


def _common(paths: Sequence[str]) -> str:
    """Return the innermost module around several."""
    steps = [path.split(".") if path else [] for path in paths]
    common: list[str] = []
    for parts in zip(*steps, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)


class _Calls:
    """Makes calls of a sequence of paths: a call lasts as long as the paths stay in it."""

    def __init__(self, types: Mapping[str, str]) -> None:
        self.calls: list[Call] = []
        self._types = types
        self._open: list[Call] = []
        self._times: Counter[str] = Counter()

    def enter(self, path: str | None) -> int:
        """Return the call of the innermost module around a node; -1 for none."""
        if path is None:
            self._open.clear()
            return OUTSIDE
        above = [""] + [".".join(path.split(".")[: n + 1]) for n in range(path.count(".") + 1)]
        above = list(dict.fromkeys(one for one in above if one in self._types))
        while self._open and self._open[-1].path not in above:
            self._open.pop()
        for one in above[len(self._open) :]:
            call = Call(
                id=len(self.calls),
                path=one,
                type=self._types[one],
                number=self._times[one],
                above=self._open[-1].id if self._open else OUTSIDE,
                is_inferred=True,
            )
            self._times[one] += 1
            self.calls.append(call)
            self._open.append(call)
        return self._open[-1].id if self._open else OUTSIDE
