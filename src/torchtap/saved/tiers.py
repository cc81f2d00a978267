"""Where saved tensors go: host memory, a disk, or a smaller form."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from torchtap.saved.codecs import Codec
from torchtap.saved.forks import forks
from torchtap.saved.layout import TensorLayout, bytes_of, space_for
from torchtap.saved.spill_file import Extent, SpillFile, aligned
from torchtap.saved.streams import Streams, Ticket

_CPU = torch.device("cpu")


class Tier(Protocol):
    """One kind of place.

    Attributes:
        name: for reports.
        capacity: bytes that it may hold, or ``None``.
        used: bytes that it holds, and those that were claimed; the session counts them.
        is_slow: ``put`` and ``get`` wait for a disk, so they run in a thread of their own, but for
            what is small.
    """

    name: str
    capacity: int | None
    used: int
    is_slow: bool

    def accepts(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether it takes such tensors."""

    def room(self, form: TensorLayout) -> int:
        """Bytes to count in before a tensor is put."""

    def put(self, elements: Tensor, form: TensorLayout) -> tuple[Any, int, Ticket | None]:
        """Take contiguous elements; returns a handle, its bytes, and what to wait for."""

    def get(self, handle: Any, form: TensorLayout) -> tuple[Tensor, Ticket | None]:
        """The elements again, in memory of their own, and what to wait for."""

    def drop(self, handle: Any) -> None:
        """They are needed no more. Takes no lock: finalisers call it."""


class DiskTier:
    """A slab on a disk."""

    name = "disk"
    is_slow = True

    def __init__(self, folder: Path, capacity: int | None = None) -> None:
        self.capacity = capacity
        self._folder = folder
        self._slab = SpillFile(folder)
        self._forks = forks.count
        self.used = 0

    def accepts(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Everything."""
        return True

    def room(self, form: TensorLayout) -> int:
        """Whole pages."""
        return aligned(form.nbytes)

    def put(
        self, elements: Tensor, form: TensorLayout
    ) -> tuple[tuple[SpillFile, Extent], int, None]:
        """Write; raises OSError where the disk is full."""
        if self._forks != forks.count:  # A child must not write into its parent's.
            self._slab, self._forks = SpillFile(self._folder), forks.count
        slab = self._slab
        host = elements.cpu() if elements.is_cuda else elements
        extent = slab.reserve(form.nbytes)
        try:
            slab.write(extent, bytes_of(host, form))
        except BaseException:
            slab.drop(extent)
            raise
        return (slab, extent), extent[1], None

    def get(self, handle: tuple[SpillFile, Extent], form: TensorLayout) -> tuple[Tensor, None]:
        """Read."""
        slab, extent = handle
        if form.is_small:
            slab.expect(extent)
        elements = space_for(form, _CPU)
        slab.read(extent, bytes_of(elements, form))
        return elements if form.device == _CPU else elements.to(form.device), None

    def drop(self, handle: tuple[SpillFile, Extent]) -> None:
        """Give the room back."""
        slab, extent = handle
        slab.drop(extent)

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
        self.used = 0

    def accepts(self, dtype: torch.dtype, device: torch.device) -> bool:
        """What is not there already."""
        return self._streams.serves(device)

    def room(self, form: TensorLayout) -> int:
        """All of it."""
        return form.nbytes

    def put(self, elements: Tensor, form: TensorLayout) -> tuple[Any, int, Ticket]:
        """Begin to copy out."""
        held, ticket = self._streams.out(elements)
        return held, elements.nbytes, ticket

    def get(self, handle: Any, form: TensorLayout) -> tuple[Tensor, Ticket]:
        """Begin to copy back."""
        elements = space_for(form, form.device)
        return elements, self._streams.back(handle, elements)

    def drop(self, handle: Any) -> None:
        """Let the memory be used again."""
        self._streams.drop(handle)


class CodecTier:
    """A smaller form, where the tensor is."""

    is_slow = False

    def __init__(self, codec: Codec, capacity: int | None = None) -> None:
        self.name = codec.name
        self.capacity = capacity
        self._codec = codec
        self.used = 0

    def accepts(self, dtype: torch.dtype, device: torch.device) -> bool:
        """What the codec takes."""
        return self._codec.accepts(dtype)

    def room(self, form: TensorLayout) -> int:
        """All of it."""
        return form.nbytes

    def put(self, elements: Tensor, form: TensorLayout) -> tuple[tuple[Tensor, ...], int, None]:
        """Encode."""
        with torch.no_grad():
            parts = self._codec.encode(elements.view(-1))
        nbytes = sum(part.nbytes for part in parts)
        self.used += nbytes - elements.nbytes  # The whole was counted in.
        return parts, nbytes, None

    def get(self, handle: tuple[Tensor, ...], form: TensorLayout) -> tuple[Tensor, None]:
        """Decode."""
        with torch.no_grad():
            elements = self._codec.decode(handle, form.length, form.dtype)
        return elements.view(form.size) if form.is_plain else elements, None

    def drop(self, handle: Any) -> None:
        """They go with the graph."""
