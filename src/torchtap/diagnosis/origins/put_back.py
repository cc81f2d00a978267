"""Puts everything back that a step changes: values in memory, and what Python objects refer to."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchtap.core.module_paths import every_module
from torchtap.core.preserved import RandomState
from torchtap.core.tensors import storage_id
from torchtap.diagnosis.origins.operation import written_by

_TABLES = ("_parameters", "_buffers")
_PLAIN = (bool, int, float, complex, str, bytes, tuple, type(None))
"""Attributes of modules of these classes are put back: counters, for instance."""
_HELD = (Optimizer, GradScaler, LRScheduler)
"""Classes of objects that a step changes beside its model."""
Undo = Callable[[], object]


class Memory:
    """Copies of what is written into, taken before the first write.

    Memory that was made since counts as the step's own, and is not copied.
    """

    def __init__(self) -> None:
        self._own: set[int] = set()
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}

    def made(self, tensors: Sequence[Tensor]) -> None:
        """Note tensors of new memory."""
        self._own.update(key for tensor in tensors if (key := storage_id(tensor)))

    def before_write(self, tensors: Sequence[Tensor]) -> None:
        """Copy the memory of tensors that are about to be written into."""
        for tensor in tensors:
            key = storage_id(tensor)
            if key in self._own or (key or id(tensor)) in self._copies:
                continue
            self._copies[key or id(tensor)] = tensor, _copy(tensor)

    def put_back(self) -> None:
        """Write what was there."""
        with torch.no_grad():
            for tensor, copy in self._copies.values():
                _write(tensor, copy)


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
        taken = {storage_id(one) for one in _tensors_in((args, kwargs))}
        self._memory.made([one for one in _tensors_in(returned) if storage_id(one) not in taken])
        return returned


def _tensors_in(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _copy(tensor: Tensor) -> Any:
    if storage_id(tensor):
        return tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
    return tensor.detach().clone()


def _write(tensor: Tensor, copy: Any) -> None:
    if isinstance(copy, Tensor):
        tensor.detach().copy_(copy)
        return
    storage = tensor.untyped_storage()
    # The step may have resized it (resize_, or FSDP that frees a storage).
    if storage.nbytes() != copy.nbytes():
        storage.resize_(copy.nbytes())
    storage.copy_(copy)


class PutBack:
    """Everything that a step may change, as it was when this object was made.

    Args:
        model: the model of the step.
        held: what else may hold random generators, such as the batch.

    Attributes:
        memory: takes note of what is written into.
        scalers: the ``GradScaler`` objects of this process.
        params: the parameters of the model and of all optimizers.
    """

    def __init__(self, model: nn.Module, *held: Any) -> None:
        self.memory = Memory()
        held_objects = [one for one in gc.get_objects() if issubclass(type(one), _HELD)]
        optimizers = [one for one in held_objects if isinstance(one, Optimizer)]
        self.scalers = [one for one in held_objects if isinstance(one, GradScaler)]
        groups = (
            group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ())
        )
        every = [*model.parameters(), *(param for group in groups for param in group["params"])]
        self.params = list({id(one): one for one in every}.values())
        modules = every_module(model)
        self._undo = [
            *_gradients(self.params),
            *map(_module, modules),
            *map(_optimizer, optimizers),
            *(_attributes(one) for one in held_objects if not isinstance(one, Optimizer)),
        ]
        self._random = RandomState(modules, *held)
        self._grad = torch.is_grad_enabled()

    def put_back(self) -> None:
        """Make everything what it was. It may be called again."""
        self.memory.put_back()
        for undo in self._undo:
            undo()
        self._random.put_back()
        torch.set_grad_enabled(self._grad)


def _gradients(params: Iterable[Tensor]) -> Iterable[Undo]:
    for param in params:
        yield _setter(param, param.grad, param.data, param.requires_grad)


def _setter(param: Tensor, gradient: Tensor | None, data: Tensor, requires_grad: bool) -> Undo:
    address = storage_id(data)

    def undo() -> None:
        if storage_id(param) != address:  # Other memory was assigned to ``param.data``.
            param.data = data
        if param.is_leaf and param.requires_grad != requires_grad:
            param.requires_grad_(requires_grad)
        param.grad = gradient

    return undo


def _module(module: nn.Module) -> Undo:
    if isinstance(module, torch.jit.ScriptModule):
        mode = getattr(module, "training", None)
        return lambda: None if mode is None else module.train(mode)
    held = vars(module)
    # The table itself and its content: hooks and compiled code hold the very dict.
    tables = [(held[name], dict(held[name])) for name in _TABLES]
    plain = {name: one for name, one in held.items() if isinstance(one, _PLAIN)}

    def undo() -> None:
        for table, before in tables:
            _refill(table, before)
        for name in [one for one, value in held.items() if isinstance(value, _PLAIN)]:
            if name not in plain:
                del held[name]
        held.update(plain)

    return undo


def _optimizer(optimizer: Optimizer) -> Undo:
    state: Any = optimizer.state
    states = {
        key: (one, _shallow(one) if isinstance(one, dict) else one) for key, one in state.items()
    }
    groups = [(group, _shallow(group)) for group in optimizer.param_groups]
    attributes = {name: one for name, one in vars(optimizer).items() if isinstance(one, _PLAIN)}

    def undo() -> None:
        # load_state_dict() assigns another dict.
        optimizer.state = state
        state.clear()
        for key, (own, before) in states.items():
            if isinstance(own, dict):
                _refill(own, _shallow(before))
            state[key] = own
        optimizer.param_groups[:] = [group for group, _ in groups]
        for group, before in groups:
            _refill(group, _shallow(before))
        vars(optimizer).update(attributes)

    return undo


def _attributes(held: Any) -> Undo:
    """Attributes of an object, and those of the lists and dicts among them."""
    before = _shallow(vars(held))

    def undo() -> None:
        _refill(vars(held), _shallow(before))

    return undo


def _shallow(held: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copied(one) for name, one in held.items()}


def _copied(value: Any) -> Any:
    """Return a copy of lists and dicts, at two levels; of anything else the value itself."""
    if type(value) is list:
        return list(value)
    if isinstance(value, dict):
        copy = type(value)(value.default_factory) if hasattr(value, "default_factory") else {}
        copy.update({key: dict(one) if type(one) is dict else one for key, one in value.items()})
        return copy
    return value


def _refill(table: Any, before: Mapping[Any, Any]) -> None:
    table.clear()
    table.update(before)
