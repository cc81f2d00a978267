"""Tells which storages belong to a model's buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy

from torchtap.core.storages import block_of, plain_parts


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
                number, _ = block_of(part)
                # A weak reference keeps the number from being given again, so it is asked before it
                # is replaced.
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
