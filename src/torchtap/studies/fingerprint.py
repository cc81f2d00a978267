"""A number for what a value holds, the same in another process: also for functions."""

from __future__ import annotations

import copyreg
import dis
import hashlib
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.tensors import as_bytes
from torchtap.runs.run import Run

_NAMES = (torch.dtype, torch.device, torch.layout, torch.memory_format, range, slice)
_PLAIN = (type(None), bool, int, float, complex, str, type(...), PurePath, *_NAMES)
_MAKES_OBJECTS = 2
"""The pickle protocol from which on every object says what it is made of."""


class NoFingerprintError(Exception):
    """A value holds something that cannot be compared with another run's."""


def fingerprint(value: Any) -> str:
    """Return a text that is the same for values that hold the same.

    The content of tensors counts; of functions the code, the defaults, what they close over, and
    the global names that they use, unless they are of an installed package, where the name does;
    of other objects what a pickle of them would hold.

    Raises:
        NoFingerprintError: it holds a file, a lock, a generator or the like.

    Example:
        >>> fingerprint(lambda x: 2 * x) == fingerprint(lambda x: 2 * x)
        True
        >>> fingerprint(lambda x: 2 * x) == fingerprint(lambda x: 3 * x)
        False
    """
    return _Walk().of(value).hex()


class _Walk:
    """Goes through a value and all that it holds; what is met twice is read once."""

    def __init__(self) -> None:
        # With the values, so that no other gets their ids.
        self._known: dict[int, tuple[bytes, Any]] = {}
        self._inside: list[int] = []

    def of(self, value: Any) -> bytes:
        """Return the fingerprint of one value."""
        if isinstance(value, _PLAIN):
            return _hashed(f"{type(value).__name__} {value!r}".encode())
        if isinstance(value, bytes):
            return _hashed(b"bytes", value)
        if id(value) in self._inside:  # It holds itself.
            return _hashed(f"up {len(self._inside) - self._inside.index(id(value))}".encode())
        if id(value) not in self._known:
            self._inside.append(id(value))
            name, parts = _describe(value)
            digest = _hashed(name.encode(), *map(self.of, parts))
            self._inside.pop()
            self._known[id(value)] = digest, value
        return self._known[id(value)][0]


def _hashed(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(f"{len(part)}:".encode())
        digest.update(part)
    return digest.digest()


Parts = tuple[str, Iterable[Any]]
"""A value's kind, and what it holds."""


def _describe(value: Any) -> Parts:
    for kind, describe in _KINDS:
        if isinstance(value, kind):
            return describe(value)
    return _object(value)


def _tensor(tensor: Tensor) -> Parts:
    own = tensor.detach()
    name = f"tensor {own.dtype} {own.layout} {tuple(own.shape)}"
    if own.layout is torch.sparse_coo:
        own = own.coalesce()
        return name, (own.indices(), own.values())
    try:
        plain = own.cpu().resolve_conj().resolve_neg().contiguous()
        content = hashlib.blake2b(as_bytes(plain).numpy().data).digest()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise NoFingerprintError(f"a tensor of layout {own.layout} on {own.device}") from error
    return name, (content,)


def _function(function: FunctionType) -> Parts:
    parts: list[Any] = [function.__code__, function.__defaults__, function.__kwdefaults__]
    for cell in function.__closure__ or ():
        try:
            parts.append(cell.cell_contents)
        except ValueError:
            parts.append("empty")
    if not _is_installed(function.__module__):
        names = sorted({*_global_names(function.__code__)} & {*function.__globals__})
        parts += [(name, function.__globals__[name]) for name in names]
    return f"function {function.__module__} {function.__qualname__}", parts


def _class(kind: type) -> Parts:
    name = f"class {kind.__module__} {kind.__qualname__}"
    if _is_installed(kind.__module__):
        return name, ()
    own = {key: getattr(one, "__func__", one) for key, one in sorted(vars(kind).items())}
    functions = {key: one for key, one in own.items() if isinstance(one, FunctionType)}
    return name, (kind.__bases__, functions)


def _module(module: nn.Module) -> Parts:
    others = {name: one for name, one in vars(module).items() if not name.startswith("_")}
    return "module", (
        type(module),
        module._parameters,
        module._buffers,
        module._modules,
        others,
    )


def _builtin(function: BuiltinFunctionType) -> Parts:
    owner = function.__self__
    is_bound = not isinstance(owner, ModuleType | type)
    return f"builtin {function.__module__} {function.__qualname__}", (owner,) if is_bound else ()


def _run(run: Run) -> Parts:
    return "run", (
        (str(record.site), record.step, record.call, record.phase, record.value)
        for record in run.records(phase=None)
    )


def _object(value: Any) -> Parts:
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        made = value.__reduce_ex__(_MAKES_OBJECTS) if reduce is None else reduce(value)
    except (TypeError, AttributeError, RuntimeError, pickle.PicklingError) as error:
        raise NoFingerprintError(f"an object of class {type(value).__name__}") from error
    if isinstance(made, str):
        return f"{type(value).__module__} {made}", ()
    maker, arguments, *rest = made
    state, items, pairs = ([*rest, None, None, None])[:3]
    return "object", (maker, arguments, state, list(items or ()), list(pairs or ()))


_KINDS: list[tuple[Any, Callable[[Any], Parts]]] = [
    (Tensor, _tensor),
    (dict, lambda one: ("dict", one.items())),
    ((set, frozenset), lambda one: ("set", sorted(map(fingerprint, one)))),
    ((tuple, list), lambda one: (type(one).__name__, one)),
    (FunctionType, _function),
    (CodeType, lambda one: ("code", (one.co_code, one.co_names, one.co_consts))),
    (MethodType, lambda one: ("method", (one.__func__, one.__self__))),
    (partial, lambda one: ("partial", (one.func, one.args, one.keywords))),
    (ModuleType, lambda one: (f"package {one.__name__}", ())),
    (BuiltinFunctionType, _builtin),
    (type, _class),
    (nn.Module, _module),
    (Run, _run),
]


def _global_names(code: CodeType) -> Iterator[str]:
    """Yield the global names that code uses, also inside functions that it makes."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _is_installed(name: str | None) -> bool:
    """Return whether a module is of an installed package, which is taken to stay what it is."""
    package = (name or "").partition(".")[0]
    if package in sys.stdlib_module_names or package in ("torch", "torchtap"):
        return True
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    return file is not None and bool({"site-packages", "dist-packages"} & {*PurePath(file).parts})
