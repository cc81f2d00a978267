"""What an object holds in its own attributes, read without running code of its class."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from torchtap.core.torch_private import FUTURE, SCRIPT_OBJECT

_NO_DATA = (nn.Module, torch.optim.Optimizer, enum.Enum, type, partial)
"""What has attributes that do not flow: a module's parameters are not what it is called with."""
_CLOSED = (set, frozenset, SCRIPT_OBJECT, FUTURE)
"""What may hold tensors past its attributes and cannot be looked into."""
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: functions and other types of C have none.
Part = tuple[str, Any]
_readers: WeakKeyDictionary[type, tuple[Any, tuple[tuple[str, Any], ...]]] = WeakKeyDictionary()


def attributes(value: Any) -> list[Part] | None:
    """What an object's own dict and slots hold, read past properties and ``__getattr__``."""
    if isinstance(value, (*_NO_DATA, *_CLOSED)):
        return None
    kind = type(value)
    try:
        own, slots = _readers[kind]
    except KeyError:
        own, slots = _readers[kind] = _readers_of(kind)
    if own is None and not slots:
        return None
    found = list(own.__get__(value).items()) if own is not None else []
    for name, slot in slots:
        try:
            found.append((name, slot.__get__(value)))
        except AttributeError:  # Never set.
            continue
    return [(str(name), part) for name, part in found]


def _readers_of(kind: type) -> tuple[Any, tuple[tuple[str, Any], ...]]:
    """The descriptors of a class's instance dict, if any, and of its slots."""
    own: Any = None
    slots: list[tuple[str, Any]] = []
    is_read = kind.__flags__ & _MADE_BY_PYTHON or kind is types.SimpleNamespace
    for base in kind.__mro__ if is_read else ():
        held = vars(base)
        if own is None and isinstance(held.get("__dict__"), _DESCRIPTORS):
            own = held["__dict__"]
        if "__slots__" in held:
            slots[:0] = [part for part in held.items() if isinstance(part[1], _DESCRIPTORS[1])]
    return own, tuple(slots)


def may_hold(value: Any) -> bool:
    """Whether an object may hold tensors, roughly, by what the compiler can trace."""
    if isinstance(value, set | frozenset):
        return True
    return hasattr(value, "__dict__") and not isinstance(value, _NO_DATA) and not callable(value)


def why_closed(value: Any) -> str | None:
    """What an object is and why it was not looked into; ``None`` if it holds no tensors."""
    kind = kind_name(value)
    if isinstance(value, set | frozenset):
        holds = any(isinstance(part, Tensor) for part in value)
        return f"a {kind}, which has no order to name its tensors by" if holds else None
    if isinstance(value, _CLOSED):
        return f"a {kind}, which shows no attributes"
    if kind == "ndarray" and value.dtype.hasobject:
        return "a numpy array of objects, which is not looked into"
    if isinstance(value, Iterator):
        return f"a {kind}, which can be read only once"
    return None


def kind_name(value: Any) -> str:
    """The name of an object's class."""
    return type(value).__name__
