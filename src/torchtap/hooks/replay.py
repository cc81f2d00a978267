"""Tells which call of the forward an activation checkpoint is computing again.

A checkpointed segment starts from the very memory it started from the first time, so its first
module call is recognised by the storage of its argument; the calls after it follow in the order
of the first pass. Every burst of recomputation runs under its own autograd node.
"""

from __future__ import annotations

from typing import Any

import torch

Calls = tuple[Any, int]
"""A tap and the number of its call."""

_HISTORY = 1 << 16
"""Calls that are remembered, so that a loop without steps stays flat in memory."""


class Replay:
    """The order of calls within one step, and where recomputation stands in it."""

    __slots__ = ("_burst", "_calls", "_origins", "_position")

    def __init__(self) -> None:
        self._calls: list[Calls] = []
        self._origins: dict[tuple[Any, int], int] = {}
        self._position = -1
        self._burst: Any = None

    def remember(self, tap: Any, call: int, storage: int) -> None:
        """Write down a call of the first pass (or of an outer recomputation)."""
        if len(self._calls) >= _HISTORY:
            self._calls.clear()
            self._origins.clear()
        if storage:
            self._origins[tap, storage] = len(self._calls)
        self._calls.append((tap, call))

    def find(self, tap: Any, storage: int) -> int | None:
        """Which call of ``tap`` is running again; ``None`` if it cannot be told."""
        node = torch._C._current_autograd_node()
        origin = self._origins.get((tap, storage)) if storage else None
        follows = self._following(tap)
        if node is self._burst and follows is not None:
            place: int | None = follows
        else:
            place = origin if origin is not None else self._only(tap)
        self._burst = node
        if place is None:
            return None
        self._position = place
        call = self._calls[place][1]
        if storage and origin is None:
            # Checkpoints inside this one will start from memory that is new now.
            self._origins[tap, storage] = place
        return call

    def _following(self, tap: Any) -> int | None:
        place = self._position + 1
        if 0 < place < len(self._calls) and self._calls[place][0] is tap:
            return place
        return None

    def _only(self, tap: Any) -> int | None:
        places = [place for place, (other, _) in enumerate(self._calls) if other is tap]
        return places[0] if len(places) == 1 else None
