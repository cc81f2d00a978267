"""Lets a compiled graph hand over a value once that several modules return or are given.

A module often returns what its last part returned, a dropout that drops nothing returns what it
took, and one gradient goes along a whole residual. Only the graph knows that these are one value:
to tell it from memory would be wrong, since a graph uses memory again. So where operators follow
each other that hand over the same value, inductor is given one operator in their place. It is
called once, and the value is read once.
"""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from torchtap.core.torch_private import inductor_pass

if TYPE_CHECKING:
    from torch.fx import Graph, Node

_lock = threading.RLock()  # The collector may finish a holder while another one is counted.
_num_holders = 0
_pass: Any = None


class GroupingRequest:
    """One request that graphs which are compiled from now on hand over each value once."""

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


class _Emit(NamedTuple):
    """An operator in a graph, and what it hands over."""

    node: Node
    value: Node
    ticket: Node
    what: Any


def group(graph: Graph) -> None:
    """Put one operator in the place of those that follow each other and hand over one value.

    Args:
        graph: of inductor, still functional: nodes of effects are chained by their tokens.
    """
    from torchtap.capture.compiled import write_all

    for emits in list(_groups(graph)):
        last = emits[-1].node
        tickets = [emit.ticket for emit in emits]
        what = write_all([emit.what for emit in emits])
        several = torch.ops.torchtap.emit_same.default
        with graph.inserting_before(last):
            together = graph.call_function(
                torch.ops.higher_order.with_effects,
                (emits[0].node.args[0], several, emits[0].value, tickets, what),
            )
        together.meta.update(last.meta)
        last.replace_all_uses_with(together)
        for emit in reversed(emits):
            for token in list(emit.node.users):
                graph.erase_node(token)
            graph.erase_node(emit.node)


def _groups(graph: Graph) -> Iterator[list[_Emit]]:
    emits: list[_Emit] = []
    for node in graph.nodes:
        emit = _read(node)
        if emit is not None and emits and _belongs(emit, emits[-1]):
            emits.append(emit)
        elif emit is not None or _writes(node):
            if len(emits) > 1:
                yield emits
            emits = [] if emit is None else [emit]
    if len(emits) > 1:
        yield emits


def _read(node: Node) -> _Emit | None:
    if node.target is not torch.ops.higher_order.with_effects:
        return None
    _, called, *arguments = node.args
    if called is not torch.ops.torchtap.emit.default or arguments[0] is None:
        return None
    value, ticket, *what = arguments
    return _Emit(node, value, ticket, what)  # type: ignore[arg-type]


def _belongs(emit: _Emit, before: _Emit) -> bool:
    """Whether it hands over the same value, and is the only one that waits for the one before."""
    tokens = list(before.node.users)
    return (
        emit.value is before.value
        and len(tokens) == 1
        and tokens[0].target is operator.getitem
        and list(tokens[0].users) == [emit.node]
        and emit.node.args[0] is tokens[0]
    )


def _writes(node: Node) -> bool:
    """Whether it writes into tensors: what is handed over before it is not handed over later."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


def _count(change: int) -> None:
    """The first to come adds the pass to those of inductor, and the last to go takes it out."""
    global _num_holders, _pass
    config: Any = sys.modules.get("torch._inductor.config")
    if config is None:  # The interpreter is shutting down.
        return
    with _lock:
        _num_holders += change
        found = config.post_grad_custom_post_pass
        if _num_holders == 1 and change == 1:
            _pass = inductor_pass(group, __file__)
            if found is None:
                found = _pass
            else:
                found = (*(found if isinstance(found, list | tuple) else (found,)), _pass)
        elif _num_holders == 0 and isinstance(found, list | tuple):
            left = tuple(one for one in found if one is not _pass)
            found = left[0] if len(left) == 1 else left or None
        elif _num_holders == 0 and found is _pass:
            found = None
        config.post_grad_custom_post_pass = found
