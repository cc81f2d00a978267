"""The port ``saved``: what autograd keeps for backward, read from the nodes that a module made.

Reading changes nothing: no hook is put on saved tensors, so autograd goes on noticing when one is
overwritten, and activation checkpointing is not disturbed. ``tt.saved_report``, which runs no
backward, puts a pair on to count all that is saved; what it packed is seen through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor

from torchtap.core.tensors import storage_id
from torchtap.core.torch_nodes import COMPILED
from torchtap.hooks.graph_edges import Node, num_casts
from torchtap.hooks.saved_pairs import VersionedAlias
from torchtap.hooks.saved_slots import SavedSlots, holds_any, unpacking_hook
from torchtap.hooks.tap import SiteState, Tap

PARAMETER = "parameter"
"""Label of a saved tensor that shares the memory of a parameter: it costs nothing more."""
CAST = "parameter cast"
"""Label of a saved tensor that is a parameter in another dtype, as autocast makes it."""
BUFFER = "buffer"
"""Label of a saved tensor that shares the memory of a buffer: it costs nothing more."""
DUPLICATE = "duplicate"
"""Label of a saved tensor whose memory was counted before."""


class Counted:
    """A saved tensor that was packed for no other reason than to be counted.

    Attributes:
        alias_at_save: an alias of the tensor, and its version: it is watched for being overwritten.
        path: of the module that saved it.
        labels: what is known of it when it is saved.
        leaf: operation and slot, once a node was found that keeps it.
    """

    __slots__ = ("__weakref__", "alias_at_save", "labels", "leaf", "path")

    def __init__(self, saved: VersionedAlias, path: str, labels: tuple[str, ...]) -> None:
        self.alias_at_save = saved
        self.path = path
        self.labels = labels
        self.leaf = ""

    @property
    def alias(self) -> Tensor:
        """It, without its graph."""
        return self.alias_at_save[0]


Take = Callable[[SiteState, Tensor, tuple[str, ...]], None]


class Saved:
    """Reads saved tensors, module by module; inner ones first, so each node counts once."""

    def __init__(self) -> None:
        self._slots = SavedSlots()
        self._seen: set[Node] = set()
        self._storages: set[int] = set()

    def restart(self) -> None:
        """Forget the nodes that were read: an outermost call begins, or has ended."""
        self._seen.clear()
        self._storages.clear()

    def read(
        self,
        tap: Tap,
        outputs: Iterable[Tensor],
        first: int,
        is_param: Callable[[Tensor], bool],
        take: Take,
    ) -> None:
        """Hand on the tensors that the nodes of a module that returned keep.

        Args:
            tap: of the module.
            outputs: what it returned.
            first: number that its first node can have.
            is_param: says whether a tensor has the memory of a parameter.
            take: gets the state, the tensor and its labels.
        """
        times: Counter[str] = Counter()
        for node in _own_nodes(outputs, first):
            if node in self._seen:
                continue
            self._seen.add(node)
            tap.is_in_graph |= node.name() == COMPILED
            # An operation may be made several times within a module: its leaves are told apart as
            # sin, sin~2.
            for name, raw in self._raws(node):
                times[name] += 1
                leaf = name if times[name] == 1 else f"{name}~{times[name]}"
                state = tap.state("saved", leaf)
                if state is None:
                    continue
                tensor = raw.data
                if type(tensor) is Counted:
                    tensor.leaf, tensor = name, tensor.alias
                # What was packed by a pair of hooks may be anything, and unpacking it here could
                # recompute a checkpoint.
                elif raw.unpack_hook is not None:
                    state.reason = _packed(raw)
                    continue
                take(state, tensor, self._labels(tensor, is_param))

    def _raws(self, node: Node) -> Iterator[tuple[str, Any]]:
        """Yield the tensors that a node keeps, as ``op.slot`` and autograd's own handle."""
        op = node.name().rpartition("::")[2]
        for slot, raw in self._slots.of(node):
            if holds_any(raw):
                yield f"{op}.{slot}", raw

    def _labels(self, tensor: Tensor, is_param: Callable[[Tensor], bool]) -> tuple[str, ...]:
        storage = storage_id(tensor)
        if is_param(tensor):
            return (PARAMETER,)
        if num_casts(tensor):
            return (CAST,)
        if storage and storage in self._storages:
            return (DUPLICATE,)
        self._storages.add(storage)
        return ()


def _packed(raw: Any) -> str:
    name, is_checkpoint = unpacking_hook(raw)
    if is_checkpoint:
        return "it is not kept: activation checkpointing computes it again in backward"
    return f"it was packed by a saved-tensor hook ({name}), which only backward may run"


def _own_nodes(outputs: Iterable[Tensor], first: int) -> list[Node]:
    """Return the nodes that were made since ``first``, the latest first."""
    todo: list[Node] = []
    known: set[Node] = set()
    for tensor in outputs:
        node: Node = tensor.grad_fn
        if node is not None and node not in known and node._sequence_nr() >= first:
            known.add(node)
            todo.append(node)
    # The list grows while it is walked; recursion would end at the depth of a recurrent net.
    for node in todo:
        for following, _ in node.next_functions:
            if following is None or following in known or following._sequence_nr() < first:
                continue
            known.add(following)
            todo.append(following)
    # The walk is by distance from the outputs; numbers give the order in which nodes were made.
    return sorted(todo, key=_number)


def _number(node: Node) -> int:
    return int(node._sequence_nr())
