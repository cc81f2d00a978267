"""Runs a model without leaving a trace of it in buffers and random numbers."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.equality import same
from torchtap.core.module_paths import mode_of

Access = tuple[Callable[[], Any], Callable[[Any], object]]
"""Functions that read and write the state of one generator."""


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""Tables that hold no generators; to look into those of all modules takes milliseconds."""


_PLAIN = frozenset({bool, int, float, str, type(None)})
"""Most attributes are of these classes, and hold no generators."""

_CONTAINERS = (dict, list, tuple, set)


class RandomState:
    """The state of every generator of random numbers that can be found.

    These are PyTorch's own on the CPU and on each device in use, Python's, NumPy's global one, and
    the ``torch.Generator``, ``numpy.random.Generator``, ``numpy.random.RandomState`` and
    ``random.Random`` objects that modules hold as attributes, also in lists and dicts. Generators
    that only a closure, a global variable or foreign code holds are not found.

    Args:
        modules: whose attributes are looked at.
        held: further values that are looked at, such as the arguments of the model.
    """

    def __init__(self, modules: Iterable[nn.Module], *held: Any) -> None:
        attributes = [
            value
            for module in modules
            for name in vars(module).keys() - _OF_EVERY_MODULE  # In C: these are thousands.
            if type(value := vars(module)[name]) not in _PLAIN
        ]
        self._generators = [*_global_generators(), *_held_generators([attributes, held])]
        self._states = self.read()

    def read(self) -> list[Any]:
        """Return the states as they are now; compare them with :func:`same_states`."""
        return [read() for read, _ in self._generators]

    def put_back(self, states: Sequence[Any] | None = None) -> None:
        """Make all states what they were when this object was made.

        Args:
            states: make them these instead, which :meth:`read` told.
        """
        before = self._states if states is None else states
        for (_, write), state in zip(self._generators, before, strict=True):
            write(state)


def same_states(one: Any, two: Any) -> bool:
    """Return whether the results of :meth:`RandomState.read` at two times are equal."""
    if isinstance(one, Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same_states(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same_states, one, two))
    if hasattr(one, "tobytes"):  # An array of NumPy.
        return bool(one.tobytes() == two.tobytes())
    return bool(one == two)


def _global_generators() -> Iterator[Access]:
    yield torch.get_rng_state, torch.set_rng_state
    yield random.getstate, random.setstate
    # Where nothing imported NumPy nothing has drawn from it, and the import takes long.
    if "numpy" in sys.modules:
        import numpy.random

        yield numpy.random.get_state, numpy.random.set_state
    accelerator = torch.accelerator.current_accelerator()
    for name in dict.fromkeys(
        ["cuda", "xpu", *([] if accelerator is None else [accelerator.type])]
    ):
        device: Any = getattr(torch, name, None)
        # Where it is not in use there is no state, and asking for one would start the device.
        if hasattr(device, "get_rng_state_all") and device.is_initialized():
            yield device.get_rng_state_all, device.set_rng_state_all
    if torch.backends.mps.is_available():
        yield torch.mps.get_rng_state, torch.mps.set_rng_state


def _held_generators(values: Iterable[Any]) -> Iterator[Access]:
    """Yield the access to each random generator in nested containers."""
    seen: set[int] = set()
    others: set[type] = set()  # Classes of values that are neither: most are of a few.
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if type(value) in others:
            continue
        if isinstance(value, _CONTAINERS):
            inner = value.values() if isinstance(value, dict) else value
            if not _PLAIN.issuperset(map(type, inner)) and id(value) not in seen:
                seen.add(id(value))
                waiting += inner
            continue
        access = _access(value)
        if access is None:
            others.add(type(value))
        elif id(value) not in seen:
            seen.add(id(value))
            yield access


def _access(value: Any) -> Access | None:
    """Return the functions that read and write a generator's state; ``None`` for other values."""
    numpy: Any = sys.modules.get("numpy")
    if isinstance(value, torch.Generator):
        return value.get_state, value.set_state
    # SystemRandom asks the system, and raises where it is asked for a state.
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return value.getstate, value.setstate
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return value.get_state, value.set_state
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return _of_bit_generator(value.bit_generator)
    return None


def _of_bit_generator(bits: Any) -> Access:
    return (lambda: bits.state), (lambda state: setattr(bits, "state", state))


@contextmanager
def preserved(modules: Mapping[str, nn.Module], *held: Any) -> Iterator[Callable[[], None]]:
    """Give forwards copies of the buffers and put the very tensors back; and the generators.

    A ``ScriptModule`` lets none of its buffers be replaced: forwards write into its own, and their
    values are written back at the end.

    Args:
        modules: path -> module, each once.
        held: what else may hold generators, such as the arguments of the model.

    Yields:
        a function that makes copies and generators again what they were, for one more forward.
    """
    others, values = dict[str, nn.Module](), list[tuple[Tensor, Tensor]]()
    for path, module in modules.items():
        if isinstance(module, torch.jit.ScriptModule):
            values += [(one, one.clone()) for one in module.buffers(recurse=False)]
        else:
            others[path] = module
    originals = {path: dict(one._buffers) for path, one in others.items() if one._buffers}
    owners = [(modules[path], own) for path, own in originals.items()]
    buffers = {
        id(one): one for own in originals.values() for one in own.values() if one is not None
    }
    # By id, so that a buffer that two modules share has one copy for both.
    copies = {key: buffer.clone() for key, buffer in buffers.items()}
    numbers = RandomState(modules.values(), held)

    def lend() -> None:
        for module, own in owners:
            for name, buffer in own.items():
                module._buffers[name] = None if buffer is None else copies[id(buffer)]

    def rewind() -> None:
        for key, buffer in buffers.items():
            if not _is_unchanged(copies[key], buffer):
                copies[key] = buffer.clone()
        lend()
        _write_back(values)
        numbers.put_back()

    try:
        lend()
        yield rewind
    finally:
        # Generators first: the writes below draw none, and they may raise.
        numbers.put_back()
        _write_back(values)
        for path, module in others.items():
            if module._buffers or path in originals:
                module._buffers.clear()
                module._buffers.update(originals.get(path, {}))


def _write_back(values: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Write values into the buffers that hold others now."""
    with torch.no_grad():
        for buffer, value in values:
            if not _is_unchanged(value, buffer):
                buffer.copy_(value)


@contextmanager
def gradients_set_aside(params: Iterable[Tensor]) -> Iterator[None]:
    """Let parameters have no ``.grad`` inside, and give the very tensors back at the end."""
    before = [(param, param.grad) for param in params]
    for param, _ in before:
        param.grad = None
    try:
        yield
    finally:
        for param, gradient in before:
            param.grad = gradient


def set_mode(module: nn.Module, mode: bool | None) -> None:
    """Give a module the mode that :func:`mode_of` told."""
    if mode is not None:
        module.training = mode
    elif mode_of(module) is not None:
        del module.training


def _is_unchanged(copy: Tensor, buffer: Tensor) -> bool:
    # Versions would not do: statistics of one's own are often written through .data.
    is_plain = copy.layout is torch.strided and not (copy.is_meta or copy.is_nested)
    return torch.equal(copy, buffer) if is_plain else same(copy, buffer)
