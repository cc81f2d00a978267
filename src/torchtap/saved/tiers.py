"""The tiers for evicted tensors: in host memory, on a disk, or encoded in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from torchtap.saved.codecs import Codec
from torchtap.saved.copy_streams import Streams, Ticket
from torchtap.saved.forks import forks
from torchtap.saved.spill_file import Extent, SpillFile, aligned
from torchtap.saved.tensor_layout import TensorLayout, bytes_of, space_for

_CPU = torch.device("cpu")
Direct = tuple[SpillFile | None, int, list[Extent] | None]
"""A file, its number, and its free extents of one length."""
_BY_PYTHON: Direct = (None, -1, None)


class Tier(Protocol):
    """One destination of evicted tensors.

    Attributes:
        name: for reports.
        capacity: bytes that it may hold, or ``None``.
        used: bytes that it holds, and those that were claimed for it; the engine counts them.
        is_slow: ``put`` and ``get`` wait for a disk, so they run in a worker thread, except for
            small tensors.
    """

    name: str
    capacity: int | None
    used: int
    is_slow: bool

    def accepts(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Return whether the tier takes tensors of this dtype and device."""

    def space_of(self, layout: TensorLayout) -> int:
        """Return bytes to claim before a tensor is put."""

    def put(self, elements: Tensor, layout: TensorLayout) -> tuple[Any, int, Ticket | None]:
        """Store contiguous elements; returns a handle, the bytes it takes, and what to wait for."""

    def get(self, handle: Any, layout: TensorLayout) -> tuple[Tensor, Ticket | None]:
        """Return the elements, in new memory, and what to wait for before reading them."""

    def drop(self, handle: Any) -> None:
        """Free what was put. Takes no lock, since finalisers call it."""

    def direct(self, layout: TensorLayout) -> Direct:
        """Return where the native code writes such tensors by itself, if it may."""


class DiskTier:
    """A spill file on a disk."""

    name = "disk"
    is_slow = True

    def __init__(self, folder: Path, capacity: int | None = None) -> None:
        self.capacity = capacity
        self._folder = folder
        self._file = SpillFile(folder)
        self._forks = forks.count
        self.used = 0

    def accepts(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Return all tensors that have a layout."""
        return True

    def space_of(self, layout: TensorLayout) -> int:
        """Whole pages of the file."""
        return aligned(layout.nbytes)

    def put(
        self, elements: Tensor, layout: TensorLayout
    ) -> tuple[tuple[SpillFile, Extent], int, None]:
        """Write the elements.

        Raises:
            OSError: the disk is full.
        """
        if (
            self._forks != forks.count
        ):  # A child process must not write into the file of its parent.
            self._file, self._forks = SpillFile(self._folder), forks.count
        file = self._file
        # In this thread, which has waited for the event of the device: the copy blocks nobody else.
        host = elements.cpu() if elements.is_cuda else elements
        extent = file.reserve(layout.nbytes)
        try:
            file.write(extent, bytes_of(host, layout))
        except BaseException:  # A full disk or an interrupt: the extent is free again.
            file.drop(extent)
            raise
        return (file, extent), extent[1], None

    def get(self, handle: tuple[SpillFile, Extent], layout: TensorLayout) -> tuple[Tensor, None]:
        """Read the elements."""
        file, extent = handle
        # Small tensors lie side by side in the file: one call asks the system for many of them.
        if layout.is_small:
            file.expect(extent)
        elements = space_for(layout, _CPU)
        file.read(extent, bytes_of(elements, layout))
        return elements if layout.device == _CPU else elements.to(layout.device), None

    def drop(self, handle: tuple[SpillFile, Extent]) -> None:
        """Free the extent."""
        file, extent = handle
        file.drop(extent)

    def direct(self, layout: TensorLayout) -> Direct:
        """Return the file, for small tensors: what is larger is written by a worker."""
        if not layout.is_small or self.capacity is not None or self._forks != forks.count:
            return _BY_PYTHON
        return self._file, *self._file.spare(layout.nbytes)

    def sync(self) -> None:
        """Wait until all that was written is on the disk."""
        self._file.sync()


class HostTier:
    """Host memory, for tensors of a device."""

    name = "cpu"
    is_slow = False

    def __init__(self, streams: Streams, capacity: int | None = None) -> None:
        self.capacity = capacity
        self._streams = streams
        self.used = 0

    def accepts(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Return whether the streams copy from and to this device."""
        return self._streams.serves(device)

    def space_of(self, layout: TensorLayout) -> int:
        """Return the bytes of the tensor."""
        return layout.nbytes

    def put(self, elements: Tensor, layout: TensorLayout) -> tuple[Any, int, Ticket]:
        """Begin to copy out."""
        held, ticket = self._streams.out(elements)
        return held, elements.nbytes, ticket

    def get(self, handle: Any, layout: TensorLayout) -> tuple[Tensor, Ticket]:
        """Begin to copy back."""
        elements = space_for(layout, layout.device)
        return elements, self._streams.back(handle, elements)

    def drop(self, handle: Any) -> None:
        """Let the memory be used again."""
        self._streams.drop(handle)

    def direct(self, layout: TensorLayout) -> Direct:
        """Return nothing: the streams copy."""
        return _BY_PYTHON


class CodecTier:
    """A smaller encoding, on the device of the tensor."""

    is_slow = False

    def __init__(self, codec: Codec, capacity: int | None = None) -> None:
        self.name = codec.name
        self.capacity = capacity
        self._codec = codec
        self.used = 0

    def accepts(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Return the dtypes of the codec."""
        return self._codec.accepts(dtype)

    def space_of(self, layout: TensorLayout) -> int:
        """Return the bytes of the tensor; ``put`` corrects them to those of the code."""
        return layout.nbytes

    def put(self, elements: Tensor, layout: TensorLayout) -> tuple[tuple[Tensor, ...], int, None]:
        """Encode the elements."""
        with torch.no_grad():
            parts = self._codec.encode(elements.view(-1))
        nbytes = sum(part.nbytes for part in parts)
        self.used += nbytes - elements.nbytes  # The engine has claimed space_of().
        return parts, nbytes, None

    def get(self, handle: tuple[Tensor, ...], layout: TensorLayout) -> tuple[Tensor, None]:
        """Decode the elements."""
        with torch.no_grad():
            elements = self._codec.decode(handle, layout.length, layout.dtype)
        return elements.view(layout.size) if layout.is_plain else elements, None

    def drop(self, handle: Any) -> None:
        """Nothing to do: the handle holds tensors, which are freed with the block."""

    def direct(self, layout: TensorLayout) -> Direct:
        """Return nothing: the codec encodes."""
        return _BY_PYTHON
