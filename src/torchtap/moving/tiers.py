"""Where saved tensors go: host memory, a disk, or a smaller form."""

from __future__ import annotations

import ctypes
from collections import deque
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from torchtap.moving.codecs import Codec
from torchtap.moving.forks import forks
from torchtap.moving.form import Form, space_for
from torchtap.moving.slab import Extent, Slab, aligned
from torchtap.moving.streams import Streams, Ticket

_CPU = torch.device("cpu")


class Tier(Protocol):
    """One kind of place.

    Attributes:
        name: for reports.
        capacity: bytes that it may hold, or ``None``.
        used: bytes that it holds, and those that were claimed.
        is_slow: ``put`` and ``get`` wait for a disk, so they run in a thread of their own.
    """

    name: str
    capacity: int | None
    is_slow: bool

    @property
    def used(self) -> int: ...

    def accepts(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether it takes such tensors."""

    def claim(self, form: Form) -> bool:
        """Count a tensor in before it is put, if there is room for it."""

    def give_up(self, form: Form) -> None:
        """What was claimed could not be put."""

    def put(self, elements: Tensor) -> tuple[Any, int, Ticket | None]:
        """Take contiguous elements; returns a handle, its bytes, and what to wait for."""

    def get(self, handle: Any, form: Form) -> tuple[Tensor, Ticket | None]:
        """The elements again, in memory of their own, and what to wait for."""

    def drop(self, handle: Any, nbytes: int) -> None:
        """They are needed no more. Takes no lock: finalisers call it."""


class _Count:
    """Bytes in use. Changes are only appended, and added up when asked, so no lock is taken."""

    def __init__(self) -> None:
        self._bytes = 0
        self._changes: deque[int] = deque()

    def add(self, nbytes: int) -> None:
        self._changes.append(nbytes)

    def claim(self, nbytes: int, capacity: int | None) -> bool:
        has_room = self.value + nbytes <= (capacity or 0) or capacity is None
        if has_room:
            self._bytes += nbytes
        return has_room

    @property
    def value(self) -> int:
        """Only one thread at a time may ask; a session does so under its lock."""
        while self._changes:
            self._bytes += self._changes.popleft()
        return self._bytes


class DiskTier:
    """A slab on a disk."""

    name = "disk"
    is_slow = True

    def __init__(self, folder: Path, capacity: int | None = None) -> None:
        self.capacity = capacity
        self._folder = folder
        self._slab = Slab(folder)
        self._forks = forks.count
        self._count = _Count()

    @property
    def used(self) -> int:
        """Bytes on the disk."""
        return self._count.value

    def accepts(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Everything."""
        return True

    def claim(self, form: Form) -> bool:
        """Count it in before it is put."""
        return self._count.claim(aligned(form.nbytes), self.capacity)

    def give_up(self, form: Form) -> None:
        """It could not be put."""
        self._count.add(-aligned(form.nbytes))

    def put(self, elements: Tensor) -> tuple[tuple[Slab, Extent], int, None]:
        """Write; raises OSError where the disk is full."""
        if self._forks != forks.count:  # A child must not write into its parent's.
            self._slab, self._forks = Slab(self._folder), forks.count
        slab = self._slab
        host = elements.cpu() if elements.is_cuda else elements
        extent = slab.reserve(host.nbytes)
        try:
            slab.write(extent, _bytes_of(host))
        except BaseException:
            slab.drop(extent)
            raise
        return (slab, extent), extent[1], None

    def get(self, handle: tuple[Slab, Extent], form: Form) -> tuple[Tensor, None]:
        """Read."""
        slab, extent = handle
        elements = space_for(form, _CPU)
        slab.read(extent, _bytes_of(elements))
        return elements if form.on_cpu else elements.to(form.device), None

    def drop(self, handle: tuple[Slab, Extent], nbytes: int) -> None:
        """Give the room back."""
        slab, extent = handle
        slab.drop(extent)
        self._count.add(-nbytes)

    def sync(self) -> None:
        """Wait until all is on the disk."""
        self._slab.sync()


class HostTier:
    """Host memory, for tensors of a device."""

    name = "cpu"
    is_slow = False

    def __init__(self, streams: Streams, capacity: int | None = None) -> None:
        self.capacity = capacity
        self._streams = streams
        self._count = _Count()

    @property
    def used(self) -> int:
        """Bytes in host memory."""
        return self._count.value

    def accepts(self, dtype: torch.dtype, device: torch.device) -> bool:
        """What is not there already."""
        return self._streams.serves(device)

    def claim(self, form: Form) -> bool:
        """Count it in before it is put."""
        return self._count.claim(form.nbytes, self.capacity)

    def give_up(self, form: Form) -> None:
        """It could not be put."""
        self._count.add(-form.nbytes)

    def put(self, elements: Tensor) -> tuple[Any, int, Ticket]:
        """Begin to copy out."""
        held, ticket = self._streams.out(elements)
        return held, elements.nbytes, ticket

    def get(self, handle: Any, form: Form) -> tuple[Tensor, Ticket]:
        """Begin to copy back."""
        elements = space_for(form, form.device)
        return elements, self._streams.back(handle, elements)

    def drop(self, handle: Any, nbytes: int) -> None:
        """Let the memory be used again."""
        self._streams.drop(handle)
        self._count.add(-nbytes)


class CodecTier:
    """A smaller form, where the tensor is."""

    is_slow = False

    def __init__(self, codec: Codec, capacity: int | None = None) -> None:
        self.name = codec.name
        self.capacity = capacity
        self._codec = codec
        self._count = _Count()

    @property
    def used(self) -> int:
        """Bytes of the smaller forms."""
        return self._count.value

    def accepts(self, dtype: torch.dtype, device: torch.device) -> bool:
        """What the codec takes."""
        return self._codec.accepts(dtype)

    def claim(self, form: Form) -> bool:
        """Count it in before it is put."""
        return self._count.claim(form.nbytes, self.capacity)

    def give_up(self, form: Form) -> None:
        """It could not be put."""
        self._count.add(-form.nbytes)

    def put(self, elements: Tensor) -> tuple[tuple[Tensor, ...], int, None]:
        """Encode."""
        with torch.no_grad():
            parts = self._codec.encode(elements.view(-1))
        nbytes = sum(part.nbytes for part in parts)
        self._count.add(nbytes - elements.nbytes)  # The whole was claimed.
        return parts, nbytes, None

    def get(self, handle: tuple[Tensor, ...], form: Form) -> tuple[Tensor, None]:
        """Decode."""
        with torch.no_grad():
            elements = self._codec.decode(handle, form.length, form.dtype)
        return elements.view(form.size) if form.is_plain else elements, None

    def drop(self, handle: Any, nbytes: int) -> None:
        """They go with the graph."""
        self._count.add(-nbytes)


def _bytes_of(elements: Tensor) -> memoryview:
    """The memory of contiguous elements on the CPU, which must live longer than this.

    By its address: numpy knows fewer dtypes, and takes five times as long.
    """
    kind = ctypes.c_char * elements.nbytes
    return memoryview(kind.from_address(elements.data_ptr()))
