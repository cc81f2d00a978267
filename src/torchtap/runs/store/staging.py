"""A tensor as bytes of its own on the CPU, so that the training may write into it again.

The bytes go into buffers that are used again: memory that is new to a process costs the system more
time than the copy itself. Tensors of a device are copied there first, on the stream that computes
them; the copy is brought to pinned memory by a stream of its own, and nothing waits for it but the
thread that writes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtap.core.tensors import as_bytes

_PARTS = 8
"""Buffers have sizes of so many steps between two powers of two."""
_LEAST = 4096
CLONED = {
    getattr(torch, name): name
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64"),
    )
}
"""Dtypes, with their names, of which small values are cloned in place of copied into a buffer."""


def rounded(nbytes: int) -> int:
    """Return the size of the buffer for so many bytes, at most 1/8 larger."""
    # Batches that differ a little in length find the buffers of one another.
    step = max(_LEAST, (1 << max(nbytes - 1, 0).bit_length()) // (2 * _PARTS))
    return -(-nbytes // step) * step


class Buffers:
    """Memory to copy into, which is used again.

    Args:
        max_bytes: of all together.
        in_use: how many bytes are taken now.
    """

    def __init__(self, max_bytes: int, in_use: Callable[[], int]) -> None:
        self._max_bytes = max_bytes
        self._in_use = in_use
        self._free: dict[tuple[int, bool], list[Tensor]] = {}
        self._free_bytes = 0
        self._lock = threading.Lock()

    def take(self, nbytes: int, *, pinned: bool) -> Tensor:
        """Return a buffer of at least so many bytes.

        Args:
            nbytes: least.
            pinned: whether devices can copy into it while the program goes on.
        """
        size = rounded(nbytes)
        with self._lock:
            buffers = self._free.get((size, pinned))
            if buffers:
                self._free_bytes -= size
                return buffers.pop()
            while self._free_bytes and self._free_bytes + self._in_use() > self._max_bytes:
                self._drop_one()
        return torch.empty(size, dtype=torch.uint8, pin_memory=pinned)

    def give_back(self, buffer: Tensor, *, pinned: bool) -> None:
        """Keep a buffer for later; it counts as free from now on."""
        size = buffer.numel()
        with self._lock:
            if self._free_bytes + size <= self._max_bytes:
                self._free.setdefault((size, pinned), []).append(buffer)
                self._free_bytes += size

    def clear(self) -> None:
        """Let go of all that are free."""
        with self._lock:
            self._free.clear()
            self._free_bytes = 0

    def _drop_one(self) -> None:
        """Let go of one buffer of the kind of which none was asked for the longest."""
        kind, found = next((key, one) for key, one in self._free.items() if one)
        found.pop()
        self._free_bytes -= kind[0]
        if not found:
            del self._free[kind]


class Stager:
    """Copies tensors into buffers."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}

    def copy(self, tensor: Tensor, into: Tensor) -> Any:
        """Copy a strided tensor to the start of a buffer.

        Returns:
            an event to wait for, or ``None`` if the bytes are there.
        """
        nbytes = tensor.numel() * tensor.element_size()
        if not nbytes:
            return None
        target = into[:nbytes]
        if tensor.device.type == "cuda":
            return self._copy_from_device(tensor, target)
        if tensor.device.type != "cpu":
            tensor = tensor.cpu()
        # To conjugate or negate a tensor sets a flag: the bytes alone would be another value.
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            target.copy_(as_bytes(tensor))
        else:
            target.view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return None

    def _copy_from_device(self, tensor: Tensor, target: Tensor) -> Any:
        device = tensor.device
        computing = torch.cuda.current_stream(device)
        # The clone is made in the order of the training's own work, before anything overwrites the
        # tensor. The copy to the host takes longer, and runs beside what the training does next.
        own = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = _stream(device)
        stream.wait_stream(computing)
        with torch.cuda.stream(stream):
            target.copy_(as_bytes(own), non_blocking=True)
            # Else the allocator may hand its memory out while this stream still reads it.
            own.record_stream(stream)
            arrived = _event()
            arrived.record(stream)
        return arrived


def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _event() -> Any:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]
