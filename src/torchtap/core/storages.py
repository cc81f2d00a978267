"""Find the storages that a tensor keeps alive, and the bytes of them that it covers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


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
    return [block_of(part) for part in plain_parts(tensor)]


def block_of(part: Tensor) -> tuple[int, int]:
    """Return the number of a strided tensor's storage, 0 if it has none, and its bytes."""
    try:
        storage = part.untyped_storage()
    except (NotImplementedError, RuntimeError):  # Of a foreign back end: it has no storage.
        return 0, part.numel() * part.element_size()
    return int(storage._cdata), int(storage.nbytes())


def spans_of(tensor: Tensor) -> list[tuple[int, int, int]]:
    """Return the stretches of memory of a tensor: storage, first byte, byte after the last.

    Elements that ``expand`` repeats count once.
    """
    return [_span_of(part) for part in plain_parts(tensor) if block_of(part)[0]]


def _span_of(part: Tensor) -> tuple[int, int, int]:
    steps = zip(part.shape, part.stride(), strict=True)
    # Strides of a tensor are never negative in PyTorch (as_strided refuses them), so the first
    # element is the lowest.
    reach = 1 + sum((length - 1) * step for length, step in steps) if part.numel() else 0
    start = int(part.storage_offset()) * part.element_size()
    storage = int(part.untyped_storage()._cdata)
    return storage, start, start + reach * part.element_size()


def covered(spans: Iterable[tuple[int, int, int]]) -> int:
    """Return bytes in at least one of several stretches."""
    nbytes, storage, reached = 0, -1, 0
    # Sorted, so that what was covered so far ends at one place of each storage.
    for where, start, end in sorted(spans):
        if where != storage:
            storage, reached = where, start
        nbytes += max(0, end - max(start, reached))
        reached = max(reached, end)
    return nbytes
