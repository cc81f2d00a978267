"""Values on their way to the thread that writes: a queue that is bounded in bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from torchtap.runs.store.statistics_files import Measured


@dataclass(frozen=True, slots=True)
class Staged:
    """One value that waits to be written.

    Attributes:
        order: its place among the values of the attempt.
        key: site, step, call, phase, backward and labels.
        dtype: without ``torch.``.
        shape: of the tensor.
        buffer: on the CPU, which begins with its bytes.
        nbytes: how many these are.
        room: how many bytes of the queue it takes.
        arrived: tells when a copy from a device is complete; ``None`` where it is.
    """

    order: int
    key: tuple[Any, ...]
    dtype: str
    shape: tuple[int, ...]
    buffer: Tensor
    nbytes: int
    room: int
    arrived: Any = None


@dataclass(frozen=True, slots=True)
class Values:
    """Values to be written."""

    staged: Sequence[Staged]


@dataclass(frozen=True, slots=True)
class SmallValues:
    """Small values of plain tensors on the CPU.

    Attributes:
        values: place among the values of the attempt, key, and a copy of each.
        room: how many bytes of the queue they take together.
    """

    values: Sequence[tuple[int, Any, Tensor]]
    room: int


@dataclass(frozen=True, slots=True)
class EndOfStep:
    """The item that asks to commit what was written since the last item of its kind."""

    step: int
    time: float
    is_closed: bool
    ids: Sequence[int | str] = ()
    labels: dict[str, Any] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)
    dropped: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MeasuredRows:
    """Rows of statistics to be written."""

    measured: Measured


@dataclass(frozen=True, slots=True)
class Request:
    """Something to be done once all before it is written, such as a flush.

    Attributes:
        what: ``drain``, ``flush``, ``close`` or ``abandon``.
        body: what it needs.
        done: set afterwards.
    """

    what: str
    body: Any = None
    done: threading.Event = field(default_factory=threading.Event)


Item = Values | SmallValues | EndOfStep | MeasuredRows | Request


class ByteQueue:
    """Items between two threads.

    Args:
        max_bytes: that wait at most; one value that is larger waits alone.
        pause: for how many seconds the thread that writes waits for others behind an item that is
            not urgent: to be woken for each step costs more than to write it.
    """

    def __init__(self, max_bytes: int, pause: float = 0.0) -> None:
        self.max_bytes = max_bytes
        self._pause = pause
        self._is_urgent = False
        self.num_bytes = 0
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._is_broken = False

    def reserve(self, nbytes: int, *, wait: bool) -> bool:
        """Take room for a value; ``False`` where there is none, or nothing is written any more."""
        with self._changed:
            while self.num_bytes and self.num_bytes + nbytes > self.max_bytes:
                self._hurry()
                if not wait or self._is_broken:
                    return False
                self._changed.wait()
            if not self._is_broken:
                self.num_bytes += nbytes
            return not self._is_broken

    def release(self, nbytes: int) -> None:
        """Give room back."""
        with self._changed:
            self.num_bytes -= nbytes
            self._changed.notify_all()

    def put(self, item: Item, *, urgent: bool = True) -> None:
        """Hand an item over; never waits.

        Args:
            item: what.
            urgent: whether it is to be seen to at once.
        """
        with self._changed:
            self._items.append(item)
            # A quarter full: room is to be free again before the training has to wait for it.
            if urgent or 4 * self.num_bytes > self.max_bytes:
                self._hurry()
            # The thread waits for a first item; those behind it are taken together with it.
            elif len(self._items) == 1:
                self._changed.notify_all()

    def get(self, most: float | None = None) -> list[Item]:
        """Return the next items; waits for them, and after ``most`` seconds returns none."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._items), most):
                return []
            if not self._is_urgent and self._pause:
                self._changed.wait_for(lambda: self._is_urgent, self._pause)
            self._is_urgent = False
            # In one go: the collector may run here, and finish a sink that puts its last item in.
            items, self._items = self._items, deque()
            return list(items)

    def _hurry(self) -> None:
        self._is_urgent = True
        self._changed.notify_all()

    def give_up(self) -> None:
        """The writer has stopped: wake the threads that wait for room, and admit nothing."""
        with self._changed:
            self._is_broken = True
            self._changed.notify_all()
