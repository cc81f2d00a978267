"""Find the storages that a tensor keeps alive, and which of them belong to buffers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy

_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
_CHECKPOINT_FILE = torch.utils.checkpoint.__file__


def plain_parts(tensor: Tensor) -> list[Tensor]:
    """Return the strided tensors that hold the numbers of a tensor, also of a sparse one.

    A wrapper subclass is taken apart as it says itself (``__tensor_flatten__``). Itself, where
    nothing is known of how it is made.
    """
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in _COMPRESSED:
        indices = [getattr(tensor, name)() for name in _COMPRESSED[tensor.layout]]
        return [*indices, tensor.values()]
    if hasattr(tensor, "__tensor_flatten__"):
        inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        # A DTensor counts its DeviceMesh among them.
        return [part for one in inner if isinstance(one, Tensor) for part in plain_parts(one)]
    return [tensor]


def blocks_of(tensor: Tensor) -> list[tuple[int, int]]:
    """Return the memory that a tensor keeps alive: a number for each storage, and its bytes.

    A view keeps all of its base alive. No other storage has the number while this one lives; it is
    0 where there is none to be told apart.
    """
    return [_block_of(part) for part in plain_parts(tensor)]


def _block_of(part: Tensor) -> tuple[int, int]:
    try:
        storage = part.untyped_storage()
    except (NotImplementedError, RuntimeError):  # Of a foreign back end: it has no storage.
        return 0, part.numel() * part.element_size()
    return int(storage._cdata), int(storage.nbytes())


def spans_of(tensor: Tensor) -> list[tuple[int, int, int]]:
    """Return the stretches of memory of a tensor: storage, first byte, byte after the last.

    Elements that ``expand`` repeats count once.
    """
    return [_span_of(part) for part in plain_parts(tensor) if _block_of(part)[0]]


def _span_of(part: Tensor) -> tuple[int, int, int]:
    steps = zip(part.shape, part.stride(), strict=True)
    reach = 1 + sum((length - 1) * step for length, step in steps) if part.numel() else 0
    start = int(part.storage_offset()) * part.element_size()
    storage = int(part.untyped_storage()._cdata)
    return storage, start, start + reach * part.element_size()


def covered(spans: Iterable[tuple[int, int, int]]) -> int:
    """Return bytes in at least one of several stretches."""
    nbytes, storage, reached = 0, -1, 0
    for where, start, end in sorted(spans):
        if where != storage:
            storage, reached = where, start
        nbytes += max(0, end - max(start, reached))
        reached = max(reached, end)
    return nbytes


def is_for_checkpoint() -> bool:
    """Return whether an activation checkpoint saves the tensor: its file is a few frames up.

    Between are the functions of ours that autograd called, and ``Function.apply``. Code inside a
    checkpoint never gets here: it has hooks of its own on top, or is in a backward.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(8):
        if frame is not None and frame.f_code.co_filename == _CHECKPOINT_FILE:
            return True
        frame = None if frame is None else frame.f_back
    return False


class Buffers:
    """The memory of a model's buffers, which is there whether or not they are saved.

    A buffer may be replaced by another tensor at any time (a table that grows with the sequence),
    so what is known is looked at again when a module is entered.

    Args:
        modules: path -> module.
        min_bytes: smaller ones are of no interest.
    """

    def __init__(self, modules: Iterable[tuple[str, nn.Module]], min_bytes: int = 0) -> None:
        self._owners = [(path, module) for path, module in modules if module._buffers]
        self._min_bytes = min_bytes
        self._known: dict[int, Any] = {}
        self.look(self._owners)

    def inside(self, path: str) -> list[tuple[str, nn.Module]]:
        """Return the owners of buffers from a module on downwards."""
        start = f"{path}." if path else ""
        return [pair for pair in self._owners if pair[0] == path or pair[0].startswith(start)]

    def look(self, owners: Sequence[tuple[str, nn.Module]]) -> None:
        """Take note of the buffers that they have now."""
        for tensor in self._tensors(owners):
            for part in plain_parts(tensor):
                number, _ = _block_of(part)
                if number and number not in self:
                    storage = part.untyped_storage()
                    self._known[number] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def _tensors(self, owners: Sequence[tuple[str, nn.Module]]) -> Iterator[Tensor]:
        for _, module in owners:
            for tensor in module._buffers.values():
                if tensor is not None and not is_lazy(tensor) and tensor.nbytes >= self._min_bytes:
                    yield tensor

    def __contains__(self, storage: int) -> bool:
        """Return whether a storage is a buffer's. Addresses are used again once one is gone."""
        held = self._known.get(storage)
        return held is not None and not held.expired()
