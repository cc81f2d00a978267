"""Copies between a device and host memory that run beside the computation."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from torchtap.saved.free_list import FreeList

BLOCK = 64 << 20
"""Bytes of pinned memory that are taken at once: each time costs milliseconds."""

_ALIGNMENT = 512


class Ticket(Protocol):
    """A copy that may still be running."""

    def is_done(self) -> bool:
        """Whether it has ended; asks without waiting."""

    def wait(self) -> None:
        """Wait until it has ended."""

    def join(self) -> None:
        """Let what is computed from here on come after it, without waiting."""


class Streams(Protocol):
    """Where copies run."""

    def serves(self, device: torch.device) -> bool:
        """Whether it can copy from and to this device."""

    def out(self, elements: Tensor) -> tuple[Any, Ticket]:
        """Begin to copy contiguous elements to the host.

        They must live, unchanged, until it is done.
        """

    def back(self, held: Any, like: Tensor) -> Ticket:
        """Begin to copy into ``like``, on the device."""

    def drop(self, held: Any) -> None:
        """The copy on the host is needed no more. Takes no lock."""


class _CudaTicket:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def is_done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self._event.synchronize()

    def join(self) -> None:
        torch.cuda.current_stream().wait_event(self._event)


class _Pinned:
    """A stretch of pinned memory, and the last copy that reads or writes it."""

    __slots__ = ("block", "last", "length", "start", "view")

    def __init__(self, block: int, start: int, length: int, view: Tensor) -> None:
        self.block = block
        self.start = start
        self.length = length
        self.view = view
        self.last: torch.cuda.Event | None = None


class CudaStreams:
    """One stream for each direction and device, and pinned memory in large blocks.

    The stream that computes is taken before switching; what a copy fills on the device is
    allocated on that stream, so its memory is not given to somebody else too early. Pinned memory
    is used again only when the last copy from it has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[tuple[torch.device, str], torch.cuda.Stream] = {}
        self._blocks: list[tuple[Tensor, FreeList]] = []
        self._dropped: deque[_Pinned] = deque()

    def serves(self, device: torch.device) -> bool:
        """CUDA devices."""
        return device.type == "cuda"

    def out(self, elements: Tensor) -> tuple[_Pinned, Ticket]:
        """Copy to pinned memory on a stream of its own."""
        pinned = self._take(elements.nbytes)
        target = pinned.view[: elements.nbytes].view(elements.dtype).view(elements.shape)
        event = self._on(elements.device, "out", lambda: target.copy_(elements, non_blocking=True))
        pinned.last = event
        return pinned, _CudaTicket(event)

    def back(self, held: _Pinned, like: Tensor) -> Ticket:
        """Copy into a tensor on the device, on a stream of its own."""
        source = held.view[: like.nbytes].view(like.dtype).view(like.shape)
        event = self._on(like.device, "back", lambda: like.copy_(source, non_blocking=True))
        held.last = event
        return _CudaTicket(event)

    def drop(self, held: _Pinned) -> None:
        """Appended only: finalisers may run while the lock is held."""
        self._dropped.append(held)

    def _on(self, device: torch.device, side: str, copy: Callable[[], Any]) -> torch.cuda.Event:
        computing = torch.cuda.current_stream(device)
        stream = self._streams.get((device, side))
        if stream is None:
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._streams[device, side] = stream
        stream.wait_stream(computing)
        with torch.cuda.stream(stream):
            copy()
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
        return event

    def _take(self, nbytes: int) -> _Pinned:
        length = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            self._take_back()
            for number, (block, room) in enumerate(self._blocks):
                start = room.take(length)
                if start is not None:
                    return _Pinned(number, start, length, block[start : start + length])
            block = torch.empty(max(length, BLOCK), dtype=torch.uint8, pin_memory=True)
            room = FreeList()
            room.give(length, block.numel() - length)
            self._blocks.append((block, room))
            return _Pinned(len(self._blocks) - 1, 0, length, block[:length])

    def _take_back(self) -> None:
        for _ in range(len(self._dropped)):
            held = self._dropped.popleft()
            if held.last is None or _CudaTicket(held.last).is_done():
                self._blocks[held.block][1].give(held.start, held.length)
            else:
                self._dropped.append(held)


class FakeStreams:
    """Copies on the CPU that end late, to find out what does not wait for them.

    Args:
        delay: how often a copy says that it is not done.
    """

    def __init__(self, delay: int = 3) -> None:
        self.delay = delay
        self.num_dropped = 0

    def serves(self, device: torch.device) -> bool:
        """Every device."""
        return True

    def out(self, elements: Tensor) -> tuple[Tensor, Ticket]:
        """A copy that reads its source only when it is done."""
        target = torch.empty_like(elements)
        return target, _FakeTicket(self.delay, lambda: target.copy_(elements))

    def back(self, held: Tensor, like: Tensor) -> Ticket:
        """A copy that fills its target only when it is done."""
        return _FakeTicket(self.delay, lambda: like.copy_(held))

    def drop(self, held: Tensor) -> None:
        """Spoil it: whoever still reads it will see."""
        self.num_dropped += 1
        held.view(torch.uint8).fill_(0xAB)


class _FakeTicket:
    def __init__(self, delay: int, copy: Callable[[], Any]) -> None:
        self._left = delay
        self._copy: Callable[[], Any] | None = copy

    def is_done(self) -> bool:
        self._left -= 1
        if self._left < 0:
            self.wait()
        return self._copy is None

    def wait(self) -> None:
        if self._copy is not None:
            self._copy()
            self._copy = None

    def join(self) -> None:
        self.wait()
