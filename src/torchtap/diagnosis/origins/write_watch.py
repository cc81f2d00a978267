"""Copies what a step writes into before it does, and looks at nothing else."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchtap.core.tensors import storage_id
from torchtap.diagnosis.origins.operation import written_by
from torchtap.diagnosis.origins.put_back import Memory


class WriteWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode under which a step runs that is to be undone.

    Args:
        memory: takes the copies.
    """

    def __init__(self, memory: Memory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        written = list(written_by(func, args, kwargs))
        if written:
            self._memory.before_write(written)
        returned = func(*args, **kwargs)
        taken = {storage_id(one) for one in _tensors((args, kwargs))}
        self._memory.made([one for one in _tensors(returned) if storage_id(one) not in taken])
        return returned


def _tensors(value: Any) -> list[Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, Tensor)]
