"""Puts operators that hand over values one after the other together, in graphs of inductor.

A call of an operator costs several times as much between other computations, which take the
caches, as it does after another call. And several modules hand over the very same value: one that
returns what its last part returned, a dropout that drops nothing, all gradients along a residual.
The graph knows that they are the same, where memory alone would not tell. So one call hands over
what a few modules computed, while it is still in a cache, and names each value once.
"""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from torch.fx import Graph, Node

MOST_BYTES = 1 << 20
"""So many bytes of values one call may hand over: they are read once more from a cache. Also what
a graph keeps longer than it would without."""
MOST_VALUES = 16

_lock = threading.RLock()
_num_holders = 0


class Member(NamedTuple):
    """One operator of a graph: its node, and what it hands over."""

    node: Node
    value: Node
    ticket: Node
    texts: tuple[str, str, str, bool]


class GroupingRequest:
    """One request that inductor puts operators together in what it compiles from now on."""

    __slots__ = ("_is_held",)

    def __init__(self) -> None:
        self._is_held = False

    def hold(self) -> None:
        """Ask for it, if the compiler is imported by now. Cheap to call again."""
        if not self._is_held and "torch._inductor.config" in sys.modules:
            self._is_held = True
            _count(1)

    def release(self) -> None:
        """Withdraw the request."""
        if self._is_held:
            self._is_held = False
            _count(-1)

    def __del__(self) -> None:
        self.release()  # Of a watch that was never closed.


def group(graph: Graph, *, single: Any, several: Any, write: Callable[[Any], str]) -> None:
    """Replace each run of operators by one.

    Args:
        graph: of inductor, after all that makes it functional; with ``with_effects`` nodes.
        single: the operator that hands over one value.
        several: the operator that hands over several.
        write: makes the text that says what is handed over.
    """
    for members in list(_groups(graph, single)):
        values = list(dict.fromkeys(member.value for member in members))
        items = [(values.index(member.value), *member.texts) for member in members]
        last = members[-1].node
        token = members[0].node.args[0]
        with graph.inserting_before(last):
            tickets = [member.ticket for member in members]
            arguments = (token, several, values, tickets, write(items))
            together = graph.call_function(torch.ops.higher_order.with_effects, arguments)
        together.meta.update(last.meta)
        last.replace_all_uses_with(together)
        for member in reversed(members):
            for user in list(member.node.users):
                graph.erase_node(user)
            graph.erase_node(member.node)


def _groups(graph: Graph, single: Any) -> Iterator[list[Member]]:
    """Runs of two and more operators between which nothing else has an effect."""
    members: list[Member] = []
    for node in graph.nodes:
        member = _member(node, single)
        if member is not None and _fits(members, member):
            members.append(member)
        elif member is not None or _has_effect(node):
            if len(members) > 1:
                yield members
            members = [] if member is None else [member]
    if len(members) > 1:
        yield members


def _member(node: Node, single: Any) -> Member | None:
    if not _is_with_effects(node) or node.args[1] is not single:
        return None
    _, _, value, ticket, *texts = node.args
    if not isinstance(value, torch.fx.Node) or not isinstance(ticket, torch.fx.Node):
        return None
    return Member(node, value, ticket, tuple(texts))  # type: ignore[arg-type]


def _fits(members: list[Member], member: Member) -> bool:
    if not members:
        return True
    values = {one.value for one in members} | {member.value}
    is_small = len(values) == 1 or sum(map(_num_bytes, values)) <= MOST_BYTES
    return is_small and len(members) < MOST_VALUES and _follows(members[-1].node, member.node)


def _follows(before: Node, after: Node) -> bool:
    """Whether nothing but ``after`` waits for ``before``."""
    users = list(before.users)
    if len(users) != 1 or users[0].target is not operator.getitem:
        return False
    return list(users[0].users) == [after] and after.args[0] is users[0]


def _num_bytes(node: Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return MOST_BYTES
    extents = list(value.shape)
    if not all(isinstance(extent, int) for extent in extents):  # To ask for it makes a guard.
        return MOST_BYTES // 4
    return int(value.numel() * value.element_size())


def _is_with_effects(node: Node) -> bool:
    return node.op == "call_function" and node.target is torch.ops.higher_order.with_effects


def _has_effect(node: Node) -> bool:
    """Whether values must be handed over before this node and not after."""
    if node.op != "call_function":
        return False
    schema = getattr(node.target, "_schema", None)
    return _is_with_effects(node) or (schema is not None and schema.is_mutable)


def _count(change: int) -> None:
    """The first to come adds the pass to the compiler's own, and the last to go takes it out."""
    global _num_holders
    config: Any = sys.modules.get("torch._inductor.config")
    if config is None:  # The interpreter is shutting down.
        return
    with _lock:
        _num_holders += change
        found = config.post_grad_custom_post_pass
        others = () if found is None else tuple(found) if isinstance(found, list | tuple) else (found,)
        if _num_holders == 1 and change == 1:
            config.post_grad_custom_post_pass = (*others, _grouping_pass())
        elif _num_holders == 0:
            left = tuple(one for one in others if not hasattr(one, "is_of_torchtap"))
            config.post_grad_custom_post_pass = left or None


def _grouping_pass() -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    from torchtap.capture.compiled import write_group

    operators = torch.ops.torchtap
    run = partial(
        group,
        single=operators.emit.default,
        several=operators.emit_all.default,
        write=write_group,
    )

    class Grouping(CustomGraphPass):
        is_of_torchtap = True

        def __call__(self, graph: Graph) -> None:
            run(graph)

        def uuid(self) -> Any:
            return get_hash_for_files((__file__,))

    return Grouping()
