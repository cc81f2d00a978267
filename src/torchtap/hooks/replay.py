"""Tells which call of the forward an activation checkpoint is computing again.

A checkpointed segment starts from the very memory it started from the first time, so its first
module call is recognised by the storage of its argument; the calls after it follow in the order
of the first pass. Every burst of recomputation runs under its own autograd node.

Where the first call of a segment is not watched, a reentrant checkpoint is recognised by its node,
which is made (and numbered) just before the segment first runs, and under which it runs again.
"""

from __future__ import annotations

import bisect
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from torchtap.hooks.backwards import current_task
from torchtap.hooks.graph import sequence_number
from torchtap.hooks.keep import storage_id

Calls = tuple[Any, int]
"""A tap and the number of its call."""

_HISTORY = 1 << 16
"""Calls that are remembered, so that a loop without steps stays flat in memory."""


class Replay:
    """The order of calls within one step, and where recomputation stands in it."""

    __slots__ = (
        "_burst",
        "_calls",
        "_first",
        "_held",
        "_numbers",
        "_origins",
        "_places",
        "_position",
    )

    def __init__(self) -> None:
        self._calls: list[Calls] = []
        self._origins: dict[tuple[Any, int], int] = {}
        # A storage that is gone must not lend its number to another one.
        self._held: list[StorageWeakRef] = []
        # Of calls without grad: the number of the next node then, ascending, and their places.
        self._numbers: list[int] = []
        self._places: list[int] = []
        self._position = -1
        self._burst: tuple[Any, int] = (None, -1)
        self._first = sequence_number()

    def remember(self, tap: Any, call: int, argument: Tensor | None) -> None:
        """Write down a call of the first pass (or of an outer recomputation)."""
        if len(self._calls) >= _HISTORY:
            self._calls.clear()
            self._origins.clear()
            self._held.clear()
            self._numbers.clear()
            self._places.clear()
        place = len(self._calls)
        self._calls.append((tap, call))
        self._note_memory(tap, argument, place)
        self._note_number(place)

    def find(self, tap: Any, argument: Tensor | None) -> int | None:
        """Which call of ``tap`` is running again; ``None`` if it cannot be told."""
        node: Any = torch._C._current_autograd_node()
        burst = node, current_task()
        if burst != self._burst:
            self._burst, self._position = burst, -1
        place = self._following(tap)
        if place is None:
            place = self._in_segment(tap, node)
        storage = 0 if argument is None else storage_id(argument)
        if place is None:
            place = self._origins.get((tap, storage))
        if place is None:
            place = self._only(tap)
        if place is None:
            return None
        self._position = place
        # Checkpoints inside this one will start from memory, and under nodes, that are new now.
        if (tap, storage) not in self._origins:
            self._note_memory(tap, argument, place)
        self._note_number(place)
        return self._calls[place][1]

    def _note_memory(self, tap: Any, argument: Tensor | None, place: int) -> None:
        storage = 0 if argument is None else storage_id(argument)
        if argument is not None and storage:
            held = StorageWeakRef(argument.untyped_storage())  # type: ignore[no-untyped-call]
            self._held.append(held)
            self._origins[tap, storage] = place

    def _note_number(self, place: int) -> None:
        if not torch.is_grad_enabled():
            self._numbers.append(sequence_number())
            self._places.append(place)

    def _following(self, tap: Any) -> int | None:
        place = self._position + 1
        if 0 < place < len(self._calls) and self._calls[place][0] is tap:
            return place
        return None

    def _in_segment(self, tap: Any, node: Any) -> int | None:
        """The next call of ``tap`` since the reentrant checkpoint of that node was made."""
        if type(node).__name__ != "CheckpointFunctionBackward":
            return None
        if node._sequence_nr() < self._first:
            return None  # Of an earlier step.
        start = bisect.bisect_right(self._numbers, node._sequence_nr())
        for number in range(start, len(self._places)):
            place = self._places[number]
            if place > self._position and self._calls[place][0] is tap:
                return place
        return None

    def _only(self, tap: Any) -> int | None:
        places = [place for place, (other, _) in enumerate(self._calls) if other is tap]
        return places[0] if len(places) == 1 else None
