"""Nested values as JSON and flat tensors, and back to the bit, without pickle.

A value becomes a node that JSON can hold: ``None``, a truth value, a whole number and a text stand
for themselves, everything else is a list that begins with its kind. Floats and the elements of
tensors stand in flat tensors, one per dtype, and a node says from where to where. So no NaN, no
infinity and no last digit goes through text, and a million numbers cost the header nothing.
"""

from __future__ import annotations

from array import array
from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torchtap.stats.catalogue.built_in  # noqa: F401 - registers classes
from torchtap.runs.single_file.header import DTYPES
from torchtap.stats.catalogue.kinds import is_named_value, make_value, parts_of

Node = Any
Read = Callable[[str, int, int], Tensor]
"""``(name, start, end)``: elements of one of the flat tensors, up to its end for :data:`ALL`."""
ALL = -1

NUMBERS = "numbers"
"""The flat tensor of all bare floats, ``float64``."""

_WRITABLE = frozenset([*DTYPES.values(), "complex128"])


class UnwritableError(Exception):
    """A value that cannot be written without pickle; its argument says what it is."""


class Writer:
    """Turns values into nodes, and collects what goes into flat tensors."""

    def __init__(self) -> None:
        self._numbers = array("d")
        self._pools: dict[str, list[Tensor]] = {}
        self._lengths: dict[str, int] = {}
        # By identity: the state of a step and of the whole run often hold the same tensor.
        self._known: dict[int, tuple[Tensor, Node]] = {}

    def node(self, value: Any) -> Node:
        """Return the node of one value.

        Raises:
            UnwritableError: it holds something that is neither a number, a text, a tensor, an
                array, nor a list, tuple, set or dict of these.
        """
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, str):
            return str(value)
        if isinstance(value, float):
            return ["float", self._number(value)]
        if isinstance(value, complex):
            return ["complex", self._number(value.real), self._number(value.imag)]
        return self._collection(value)

    def tensors(self) -> dict[str, Tensor]:
        """Return the flat tensors, by dtype, and under ``numbers`` the bare floats."""
        pools = {dtype: torch.cat(parts) for dtype, parts in self._pools.items()}
        if "complex128" in pools:  # safetensors has no such dtype.
            pools["complex128"] = torch.view_as_real(pools["complex128"])
        if self._numbers:
            pools[NUMBERS] = torch.from_numpy(np.array(self._numbers))
        return pools

    def _number(self, value: float) -> int:
        self._numbers.append(value)
        return len(self._numbers) - 1

    def _collection(self, value: Any) -> Node:
        name = type(value).__name__
        if is_named_value(value):
            return ["of", name, [self.node(one) for one in parts_of(value)]]
        if isinstance(value, Mapping):
            pairs = [[self.node(key), self.node(one)] for key, one in value.items()]
            return ["dict", pairs]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return ["named", name, list(value._fields), [self.node(one) for one in value]]
        for kind in (torch.Size, list, tuple, set, frozenset):
            if isinstance(value, kind):
                return [kind.__name__, [self.node(one) for one in value]]
        raise UnwritableError(f"{type(value).__module__}.{type(value).__qualname__}")

    def _array(self, value: np.ndarray[Any, Any] | np.generic) -> Node:
        plain = np.asarray(value)
        plain = np.array(plain, dtype=plain.dtype.newbyteorder("="), order="C")
        try:
            tensor = torch.from_numpy(plain)
        except TypeError:
            raise UnwritableError(f"numpy array of {plain.dtype}") from None
        return ["scalar" if isinstance(value, np.generic) else "array", self._tensor(tensor)]

    def _tensor(self, tensor: Tensor) -> Node:
        known = self._known.get(id(tensor))
        if known is None:
            known = self._known[id(tensor)] = tensor, self._new_tensor(tensor)
        return known[1]

    def _new_tensor(self, tensor: Tensor) -> Node:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
            raise UnwritableError(f"tensor that is {_oddity(tensor)}")
        if dtype not in _WRITABLE:
            raise UnwritableError(f"tensor of {dtype}")
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        start = self._lengths.get(dtype, 0)
        self._lengths[dtype] = start + len(plain)
        self._pools.setdefault(dtype, []).append(plain)
        return ["tensor", dtype, list(tensor.shape), start, start + len(plain)]


class Reader:
    """Turns nodes into the values again.

    Args:
        read: gives elements of a flat tensor.
    """

    def __init__(self, read: Read) -> None:
        self._read = read

    def value(self, node: Node) -> Any:
        """Return the value of a node."""
        if not isinstance(node, list):
            return node
        kind, *rest = node
        return _READERS[kind](self, *rest)

    def all(self, nodes: list[Node]) -> list[Any]:
        """Return the values of several."""
        return [self.value(node) for node in nodes]

    def float(self, place: int) -> float:
        """Return one bare float."""
        return float(self._read(NUMBERS, place, place + 1).numpy()[0])

    def tensor(self, dtype: str, dims: list[int], start: int, end: int) -> Tensor:
        """Return a tensor, which owns its memory."""
        if start == end:
            return torch.empty(dims, dtype=getattr(torch, dtype))
        flat = self._read(dtype, start, end)
        return (torch.view_as_complex(flat) if dtype == "complex128" else flat).reshape(dims)


_READERS: Mapping[str, Callable[..., Any]] = {
    "float": lambda reader, place: reader.float(place),
    "complex": lambda reader, real, imag: complex(reader.float(real), reader.float(imag)),
    "tensor": lambda reader, *rest: reader.tensor(*rest),
    "array": lambda reader, node: reader.value(node).numpy(),
    "scalar": lambda reader, node: reader.value(node).numpy()[()],
    "list": lambda reader, nodes: reader.all(nodes),
    "tuple": lambda reader, nodes: tuple(reader.all(nodes)),
    "Size": lambda reader, nodes: torch.Size(reader.all(nodes)),
    "set": lambda reader, nodes: set(reader.all(nodes)),
    "frozenset": lambda reader, nodes: frozenset(reader.all(nodes)),
    "dict": lambda reader, pairs: {reader.value(key): reader.value(node) for key, node in pairs},
    # A class of the user's cannot be imported here; a tuple of the same names equals it.
    "named": lambda reader, name, names, nodes: namedtuple(name, names)(*reader.all(nodes)),
    "of": lambda reader, name, nodes: make_value(name, reader.all(nodes)),
}


def _oddity(tensor: Tensor) -> str:
    if tensor.is_meta:
        return "on the meta device and has no values"
    return "nested" if tensor.is_nested else str(tensor.layout)
