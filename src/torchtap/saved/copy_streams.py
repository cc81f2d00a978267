"""Copies between a device and host memory that run beside the computation."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor

from torchtap.saved.free_list import FreeList

BLOCK = 64 << 20
"""Bytes of pinned memory per allocation, each of which takes milliseconds."""

_ALIGNMENT = 512


class Ticket(Protocol):
    """A copy that may still be running."""

    def is_done(self) -> bool:
        """Return whether the copy has ended; asks without waiting."""

    def wait(self) -> None:
        """Wait until it has ended."""

    def join(self) -> None:
        """Order what the current stream computes from here on after it, without waiting."""


class Streams(Protocol):
    """Interface of the streams that copies run on."""

    def serves(self, device: torch.device) -> bool:
        """Return whether it can copy from and to this device."""

    def out(self, elements: Tensor) -> tuple[Any, Ticket]:
        """Begin to copy contiguous elements to the host.

        They must live, unchanged, until the copy has ended.
        """

    def back(self, held: Any, like: Tensor) -> Ticket:
        """Begin to copy into ``like``, on the device."""

    def drop(self, held: Any) -> None:
        """Free the copy on the host. Takes no lock, since finalisers call it."""


class _CudaTicket:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def is_done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self._event.synchronize()

    def join(self) -> None:
        # The event makes the stream wait, and not the host.
        torch.cuda.current_stream().wait_event(self._event)


class _Pinned:
    """A range of pinned memory, and the last copy that reads or writes it."""

    __slots__ = ("block", "last", "length", "start", "view")

    def __init__(self, block: int, start: int, length: int, view: Tensor) -> None:
        self.block = block
        self.start = start
        self.length = length
        self.view = view
        self.last: torch.cuda.Event | None = None


class CudaStreams:
    """One stream for each direction and device, and pinned memory in large blocks.

    The target of a copy to the device is allocated on the stream that computes, before switching
    streams, so the CUDA caching allocator does not give its memory to another tensor too early.
    Pinned memory is reused only when the last copy from it has ended.
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
        pinned = self._allocate(elements.nbytes)
        target = pinned.view[: elements.nbytes].view(elements.dtype).view(elements.shape)
        event = self._on(elements.device, "out", lambda: target.copy_(elements, non_blocking=True))
        # Memory that is dropped before the copy has read it out is not given to another one until
        # then.
        pinned.last = event
        return pinned, _CudaTicket(event)

    def back(self, held: _Pinned, like: Tensor) -> Ticket:
        """Copy into a tensor on the device, on a stream of its own."""
        source = held.view[: like.nbytes].view(like.dtype).view(like.shape)
        event = self._on(like.device, "back", lambda: like.copy_(source, non_blocking=True))
        held.last = event
        return _CudaTicket(event)

    def drop(self, held: _Pinned) -> None:
        """Only appends, since a finaliser may run while this thread holds the lock."""
        self._dropped.append(held)

    def _on(self, device: torch.device, side: str, copy: Callable[[], Any]) -> torch.cuda.Event:
        computing = torch.cuda.current_stream(device)
        stream = self._streams.get((device, side))
        if stream is None:
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._streams[device, side] = stream
        # What is copied may not be computed yet; and ``like`` may be memory that earlier kernels
        # still read.
        stream.wait_stream(computing)
        with torch.cuda.stream(stream):
            copy()
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
        return event

    def _allocate(self, nbytes: int) -> _Pinned:
        length = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            self._free_dropped()
            # First fit: tensors of a training come back in the same sizes each step, so the ranges
            # recur.
            for number, (block, free) in enumerate(self._blocks):
                start = free.take(length)
                if start is not None:
                    return _Pinned(number, start, length, block[start : start + length])
            # Not from PyTorch's caching host allocator for each tensor, which rounds sizes up to
            # powers of two.
            block = torch.empty(max(length, BLOCK), dtype=torch.uint8, pin_memory=True)
            free = FreeList()
            free.give(length, block.numel() - length)
            self._blocks.append((block, free))
            return _Pinned(len(self._blocks) - 1, 0, length, block[:length])

    def _free_dropped(self) -> None:
        for _ in range(len(self._dropped)):
            held = self._dropped.popleft()
            # Asked and not waited for: what a copy still reads stays in the list for the next time.
            if held.last is None or _CudaTicket(held.last).is_done():
                self._blocks[held.block][1].give(held.start, held.length)
            else:
                self._dropped.append(held)


def event_on(device: torch.device) -> torch.cuda.Event | None:
    """Return an event after all that the current stream computes; ``None`` without streams."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


_in_use: ContextVar[Streams | None] = ContextVar("streams", default=None)


@contextmanager
def use_streams(streams: Streams) -> Iterator[None]:
    """Let ``tt.offload`` calls in the block copy to host memory through these streams.

    For tests without a GPU, with :class:`torchtap.testing.FakeStreams`.

    Example:
        >>> import torch, torchtap as tt
        >>> from torchtap.testing import FakeStreams
        >>> x = torch.ones(64, requires_grad=True)
        >>> with use_streams(FakeStreams()), tt.offload("cpu", min_bytes=0) as off:
        ...     y = x.exp()
        >>> off.flush()
        >>> off.report().moved_nbytes
        {'cpu': 256}
    """
    token = _in_use.set(streams)
    try:
        yield
    finally:
        _in_use.reset(token)


def streams_in_use() -> Streams:
    """Return the streams for a new ``tt.offload``."""
    return _in_use.get() or CudaStreams()
