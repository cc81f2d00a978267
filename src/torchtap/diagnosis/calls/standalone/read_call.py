"""Makes a held call again of JSON and flat tensors, without pickle and without constructors.

A node is ``None``, a truth value, a number or a text, which stand for themselves, or a list that
begins with its kind. Objects of classes are made by ``__new__`` and get their attributes; functions
and classes are imported by name. What was one object is one object again.
"""

from __future__ import annotations

import base64
import collections
import functools
import importlib
import json
import random
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

FORMAT = "torchtap call 1"
Node = Any


_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE.


class UnreadableError(Exception):
    """A folder holds no call, or names what cannot be imported here."""


def read_call(text: str, memories: dict[str, Tensor]) -> dict[str, Any]:
    """Everything that was written of a call, by its name.

    Args:
        text: the nodes.
        memories: the flat tensors.

    Raises:
        UnreadableError: it is no call, or names what cannot be imported here.
    """
    try:
        nodes = json.loads(text)
    except ValueError as error:
        raise UnreadableError(f"the description of the call is damaged ({error})") from None
    version = nodes.get("format") if isinstance(nodes, dict) else None
    if version != FORMAT:
        raise UnreadableError(f"its format is {version!r}, and {FORMAT!r} was expected")
    reader = _Reader(memories)
    return {name: reader.value(node) for name, node in nodes.items()}


def imported(name: str) -> Any:
    """Return the object of a name as ``package.module:Outer.inner``."""
    module, _, path = name.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for part in path.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise UnreadableError(f"{name} cannot be imported here ({error})") from error
    return value


class _Reader:
    def __init__(self, memories: dict[str, Tensor]) -> None:
        self._memories = memories
        self._viewed: dict[tuple[str, str], Tensor] = {}
        self._known: dict[int, Any] = {}

    def value(self, node: Node) -> Any:
        if not isinstance(node, list):
            return node
        kind, *rest = node
        if kind == "ref":
            return self._known[rest[0]]
        return _KINDS[kind](self, *rest)

    def all(self, nodes: list[Node]) -> list[Any]:
        return [self.value(node) for node in nodes]

    def know(self, number: int, value: Any) -> Any:
        """Remember an object by its number, before its parts may refer to it."""
        self._known[number] = value
        return value

    # ------------------------------------------------------------------ tensors

    def tensor(self, number: int, kind: str, traits: dict[str, Any], parts: list[Node]) -> Tensor:
        made = _TENSORS[kind](self, traits, *parts)
        if traits.get("grad"):
            made = made.requires_grad_()
        if traits.get("class"):
            made = _parameter(made, traits)
        return self.know(number, made)  # type: ignore[no-any-return]

    def strided(self, traits: dict[str, Any]) -> Tensor:
        """Return a view of a stretch of memory, which several tensors may have in common."""
        if "device" in traits and traits["device"].startswith("meta"):
            dtype = getattr(torch, traits["dtype"])
            return torch.empty_strided(
                traits["shape"], traits["stride"], dtype=dtype, device="meta"
            )
        key = traits["memory"], traits["dtype"]
        if key not in self._viewed:
            flat = self._memories[traits["memory"]]
            dtype = getattr(torch, traits["dtype"])
            if flat.dtype != dtype:
                flat = torch.view_as_complex(flat) if dtype.is_complex else flat.view(dtype)
            self._viewed[key] = flat.to(_device(traits.get("device", "cpu")))
        view = self._viewed[key]
        return view.as_strided(traits["shape"], traits["stride"], traits["offset"]).detach()

    # ------------------------------------------------------------------ modules and objects

    def module(self, number: int, name: str, tables: dict[str, Node], attributes: Node) -> Any:
        kind = imported(name)
        made = self.know(number, kind.__new__(kind))
        nn.Module.__init__(made)
        for table, node in tables.items():
            held = self.value(node)
            if isinstance(held, set):
                getattr(made, table).update(held)
            else:
                for key, value in held.items():
                    getattr(made, table)[key] = value
        vars(made).update(self.value(attributes))
        return made

    def parametrized(self, number: int, *rest: Any) -> Any:
        from torch.nn.utils import parametrize

        made = self.module(number, *rest)
        try:
            parametrize._inject_new_class(made)
            for name in made.parametrizations:
                parametrize._inject_property(made, name)
        except AttributeError as error:
            raise UnreadableError(f"this torch cannot make {rest[0]} parametrised again") from error
        return made

    def object(self, number: int, name: str, parts: Node, attributes: Node) -> Any:
        kind = imported(name)
        if issubclass(kind, tuple):
            items = self.all(parts)
            is_native = kind.__module__.startswith("torch.return_types")
            made = self.know(number, kind(items) if is_native else tuple.__new__(kind, items))
        else:
            native = next(base for base in kind.__mro__ if not base.__flags__ & _MADE_BY_PYTHON)
            made = self.know(number, native.__new__(kind))
            if issubclass(kind, dict):
                for key, value in parts:
                    native.__setitem__(made, self.value(key), self.value(value))
            elif issubclass(kind, list):
                list.extend(made, self.all(parts))
        for key, value in self.value(attributes).items():
            object.__setattr__(made, key, value)
        return made


def _device(name: str) -> torch.device:
    """Return the device that was recorded, if this machine has it, else the CPU."""
    kind = torch.device(name).type
    accelerator = torch.accelerator.current_accelerator()
    return torch.device(name if accelerator is not None and accelerator.type == kind else "cpu")


def _parameter(tensor: Tensor, traits: dict[str, Any]) -> Tensor:
    kind = imported(traits["class"])
    made = nn.Parameter(tensor.detach(), requires_grad=bool(traits.get("grad")))
    if kind is not nn.Parameter:
        made.__class__ = kind
    return made


def _quantized(reader: _Reader, traits: dict[str, Any], *parts: Node) -> Tensor:
    whole, scales, zeros = reader.all(list(parts))
    dtype = getattr(torch, traits["dtype"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch is about to drop quantised dtypes.
        if traits["axis"] is None:
            return torch.quantize_per_tensor(whole, float(scales[0]), int(zeros[0]), dtype)
        return torch.quantize_per_channel(whole, scales, zeros, traits["axis"], dtype)


def _negative(reader: _Reader, traits: dict[str, Any], part: Node) -> Tensor:
    """A view that shows memory with the other sign, as the imaginary part of a conjugate is."""
    held = reader.value(part)
    return torch.complex(torch.zeros_like(held), held).conj().imag


def _compressed(reader: _Reader, traits: dict[str, Any], *parts: Node) -> Tensor:
    compressed, plain, values = reader.all(list(parts))
    return torch.sparse_compressed_tensor(
        compressed,
        plain,
        values,
        traits["shape"],
        layout=getattr(torch, traits["layout"]),
        check_invariants=True,
    )


def _coo(reader: _Reader, traits: dict[str, Any], *parts: Node) -> Tensor:
    indices, values = reader.all(list(parts))
    return torch.sparse_coo_tensor(
        indices, values, traits["shape"], check_invariants=True, is_coalesced=traits["coalesced"]
    )


def _nested(reader: _Reader, traits: dict[str, Any], *parts: Node) -> Tensor:
    layout = getattr(torch, traits["layout"])
    return torch.nested.as_nested_tensor(reader.all(list(parts)), layout=layout)


_TENSORS: dict[str, Callable[..., Tensor]] = {
    "strided": lambda reader, traits: reader.strided(traits),
    "conjugate": lambda reader, traits, part: reader.value(part).conj(),
    "negative": _negative,
    "coo": _coo,
    "compressed": _compressed,
    "nested": _nested,
    "quantized": _quantized,
    "mkldnn": lambda reader, traits, part: reader.value(part).to_mkldnn(),
}


def _list(reader: _Reader, number: int, nodes: list[Node]) -> list[Any]:
    made: list[Any] = reader.know(number, [])
    made.extend(reader.all(nodes))
    return made


def _dict(reader: _Reader, number: int, pairs: list[list[Node]]) -> dict[Any, Any]:
    made: dict[Any, Any] = reader.know(number, {})
    made.update((reader.value(key), reader.value(node)) for key, node in pairs)
    return made


def _set(reader: _Reader, number: int, nodes: list[Node]) -> set[Any]:
    return reader.know(number, set(reader.all(nodes)))  # type: ignore[no-any-return]


def _generator(reader: _Reader, number: int, device: str, state: Node) -> torch.Generator:
    made = torch.Generator(_device(device))
    made.set_state(reader.value(state))
    return reader.know(number, made)  # type: ignore[no-any-return]


def _random(reader: _Reader, number: int, state: list[Any]) -> random.Random:
    made = random.Random()
    made.setstate((state[0], tuple(state[1]), state[2]))
    return reader.know(number, made)  # type: ignore[no-any-return]


def _numpy_generator(reader: _Reader, number: int, name: str, kind: str, state: Node) -> Any:
    import numpy

    bits = getattr(numpy.random, kind)()
    made = getattr(numpy.random, name)(bits)
    if name == "RandomState":
        made.set_state(reader.value(state))
    else:
        bits.state = reader.value(state)
    return reader.know(number, made)


def _array(reader: _Reader, number: int, dtype: str, shape: list[int], node: Node) -> Any:
    import numpy

    raw = reader.value(node).numpy().tobytes()
    return reader.know(number, numpy.frombuffer(raw, numpy.dtype(dtype)).reshape(shape).copy())


def _deque(reader: _Reader, number: int, most: int | None, nodes: list[Node]) -> Any:
    made: Any = reader.know(number, collections.deque(maxlen=most))
    made.extend(reader.all(nodes))
    return made


def _partial(reader: _Reader, number: int, parts: Node) -> Any:
    function, args, kwargs = reader.value(parts)
    return reader.know(number, functools.partial(function, *args, **kwargs))


def _handle(reader: _Reader, number: int) -> Any:
    from torch.utils.hooks import RemovableHandle

    made = RemovableHandle.__new__(RemovableHandle)  # Its constructor counts hooks.
    gone = weakref.ref(collections.OrderedDict[int, Any]())
    made.id, made.hooks_dict_ref, made.extra_dict_ref = -1, gone, ()
    return reader.know(number, made)


def _logger(reader: _Reader, name: str) -> Any:
    import logging

    return logging.getLogger(name)


_KINDS: dict[str, Callable[..., Any]] = {
    "float": lambda reader, text: float(text),
    "complex": lambda reader, real, imag: complex(reader.value(real), reader.value(imag)),
    "bytes": lambda reader, text: base64.b64decode(text),
    "ellipsis": lambda reader: ...,
    "torch": lambda reader, name: getattr(torch, name),
    "device": lambda reader, name: _device(name),
    "slice": lambda reader, *nodes: slice(*reader.all(list(nodes))),
    "range": lambda reader, *bounds: range(*bounds),
    "size": lambda reader, dims: torch.Size(dims),
    "tuple": lambda reader, nodes: tuple(reader.all(nodes)),
    "frozenset": lambda reader, nodes: frozenset(reader.all(nodes)),
    "list": _list,
    "dict": _dict,
    "set": _set,
    "deque": _deque,
    "name": lambda reader, name: imported(name),
    "enum": lambda reader, name, member: imported(name)[member],
    "method": lambda reader, owner, name: getattr(reader.value(owner), name),
    "weak": lambda reader, node: weakref.ref(reader.value(node)),
    "partial": _partial,
    "handle": _handle,
    "logger": _logger,
    "generator": _generator,
    "random": _random,
    "numpy generator": _numpy_generator,
    "array": _array,
    "scalar": lambda reader, *rest: _array(reader, *rest)[()],
    "tensor": lambda reader, *rest: reader.tensor(*rest),
    "module": lambda reader, *rest: reader.module(*rest),
    "parametrized": lambda reader, *rest: reader.parametrized(*rest),
    "object": lambda reader, *rest: reader.object(*rest),
}
