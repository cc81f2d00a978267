"""How values of each kind are written as nodes; ``standalone.read_call`` makes them again."""

from __future__ import annotations

import base64
import collections
import enum
import functools
import logging
import random
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torchtap.core.tensors import kind_of
from torchtap.diagnosis.calls.call_as_json import Node, Nodes, Writers
from torchtap.diagnosis.calls.importable import WAY, UnwritableError, in_words, name_of

_TORCH = (torch.dtype, torch.layout, torch.memory_format)


def _numbered(kind: str) -> Callable[[Nodes, Any], Node]:
    def write(nodes: Nodes, value: Any) -> Node:
        return [kind, nodes.number(value), nodes.parts(value)]

    return write


def _dict(nodes: Nodes, value: dict[Any, Any]) -> Node:
    return ["dict", nodes.number(value), nodes.pairs(value)]


def _array(nodes: Nodes, value: Any) -> Node:
    plain = np.asarray(value)
    if plain.dtype.hasobject:
        raise UnwritableError(f"it is a numpy array of {plain.dtype}")
    raw = torch.from_numpy(np.frombuffer(plain.tobytes(), dtype=np.uint8).copy())
    kind = "scalar" if isinstance(value, np.generic) else "array"
    return [kind, nodes.number(value), plain.dtype.str, list(plain.shape), nodes.tensor(raw)]


def _numpy_generator(nodes: Nodes, value: Any) -> Node:
    if isinstance(value, np.random.RandomState):
        state: Any = value.get_state(legacy=False)
        bits = state["bit_generator"]
    else:
        state, bits = value.bit_generator.state, type(value.bit_generator).__name__
    held = nodes.node(_plain_state(state))
    return ["numpy generator", nodes.number(value), type(value).__name__, bits, held]


def _plain_state(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _plain_state(one) for key, one in state.items()}
    return state.tolist() if isinstance(state, np.ndarray | np.generic) else state


def _random(nodes: Nodes, value: random.Random) -> Node:
    version, words, gauss = value.getstate()
    return ["random", nodes.number(value), [version, list(words), gauss]]


def _method(nodes: Nodes, value: Any) -> Node:
    if isinstance(value.__self__, type):
        return ["method", nodes.node(value.__self__), value.__name__]
    return ["method", nodes.part(value.__self__, f" (of {value.__name__})"), value.__name__]


def _weak(nodes: Nodes, value: Any) -> Node:
    target = value()
    if target is None:
        raise UnwritableError("it is a weak reference to what is gone")
    return ["weak", nodes.node(target)]


def _partial(nodes: Nodes, value: Any) -> Node:
    parts = nodes.node((value.func, value.args, value.keywords))
    return ["partial", nodes.number(value), parts]


def _handle(nodes: Nodes, value: RemovableHandle) -> Node:
    """A handle of a hook: it may refer to the table of a module that is not written."""
    note = "a handle of a hook in it removes nothing where the call is read again"
    if note not in nodes.notes:
        nodes.notes.append(note)
    return ["handle", nodes.number(value)]


def _refuse_iterator(nodes: Nodes, value: Any) -> Node:
    raise UnwritableError(f"it is {in_words(value)}, which can be read only once; {WAY}")


def _function(nodes: Nodes, value: Any) -> Node:
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(owner, types.ModuleType | type):
        raise UnwritableError(f"it is a method of {kind_of(owner)}")
    return ["name", name_of(value)]


_PLAIN: dict[type, Callable[[Nodes, Any], Node]] = {
    dict: _dict,
    list: _numbered("list"),
    set: _numbered("set"),
}


def _container(nodes: Nodes, value: Any) -> Node:
    """Return a dict, list or set; one of an own class is an object with items."""
    write = _PLAIN.get(type(value))
    return nodes.object(value) if write is None else write(nodes, value)


def _tuple(nodes: Nodes, value: tuple[Any, ...]) -> Node:
    if type(value) is torch.Size:
        return ["size", list(map(int, value))]
    if type(value) is tuple:
        return ["tuple", nodes.parts(value)]
    return nodes.object(value)


WRITERS: Writers = (
    (Tensor, lambda nodes, value: nodes.tensor(value)),
    (nn.Module, lambda nodes, value: nodes.module(value)),
    (enum.Enum, lambda nodes, value: ["enum", name_of(type(value)), value.name]),
    (_TORCH, lambda nodes, value: ["torch", str(value).removeprefix("torch.")]),
    (torch.device, lambda nodes, value: ["device", str(value)]),
    ((np.ndarray, np.generic), _array),
    ((np.random.Generator, np.random.RandomState), _numpy_generator),
    (torch.Generator, lambda nodes, value: [
        "generator", nodes.number(value), str(value.device), nodes.tensor(value.get_state())
    ]),
    (random.Random, _random),
    (tuple, _tuple),
    ((dict, list, set), _container),
    (frozenset, lambda nodes, value: ["frozenset", nodes.parts(value)]),
    (collections.deque, lambda nodes, value: [
        "deque", nodes.number(value), value.maxlen, nodes.parts(value)
    ]),
    (complex, lambda nodes, value: ["complex", nodes.node(value.real), nodes.node(value.imag)]),
    (bytes, lambda nodes, value: ["bytes", base64.b64encode(value).decode()]),
    (slice, lambda nodes, value: [
        "slice", *map(nodes.node, (value.start, value.stop, value.step))
    ]),
    (range, lambda nodes, value: ["range", value.start, value.stop, value.step]),
    (type(...), lambda nodes, value: ["ellipsis"]),
    (weakref.ReferenceType, _weak),
    (RemovableHandle, _handle),
    (functools.partial, _partial),
    (logging.Logger, lambda nodes, value: ["logger", value.name]),
    (types.MethodType, _method),
    ((types.FunctionType, types.BuiltinFunctionType), _function),
    (type, lambda nodes, value: ["name", name_of(value)]),
    (collections.abc.Iterator, _refuse_iterator),
)  # fmt: skip
