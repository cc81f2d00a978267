"""Read an object's own attributes without running code of its class.

An object without attributes may still hold tensors: a function in its closure, a weak reference,
a view of a dict. They are not walked, since nothing in them has a name, but asked whether a
tensor is reachable from them (:func:`why_closed`), so that it is never passed over in silence.
"""

from __future__ import annotations

import enum
import gc
import types
import weakref
from collections.abc import AsyncGenerator, Container, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from torchtap.core.torch_private import FUTURE, SCRIPT_OBJECT

_NO_DATA = (nn.Module, torch.optim.Optimizer, enum.Enum, type, partial)
"""Types with attributes that do not flow: a module's parameters are not what it is called with."""
_CLOSED = (SCRIPT_OBJECT, FUTURE)
"""Types that may hold tensors past their attributes and cannot be looked into."""
_ONCE = (Iterator, AsyncGenerator, Coroutine)
_PARAMETERS = (nn.ParameterList, nn.ParameterDict)
"""Modules that are lists and dicts of tensors, and never called."""
_HIDES = (set, frozenset, weakref.ReferenceType, BaseException, partial, *_PARAMETERS)
"""Classes that hold things past the attributes of an object."""
PROXIES = frozenset({weakref.ProxyType, weakref.CallableProxyType})
"""Types that stand for another object, and raise where that is gone."""
_NOT_FOLLOWED = (type, types.ModuleType, types.FrameType, types.TracebackType, types.CodeType)
_MOST_REACHED = 4096
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: functions and other types of C have none.
Part = tuple[str, Any]
_readers: WeakKeyDictionary[type, tuple[Any, tuple[tuple[str, Any], ...]]] = WeakKeyDictionary()


def attributes(value: Any) -> list[Part] | None:
    """Return what an object's own dict and slots hold, read past properties and ``__getattr__``."""
    kind = type(value)
    if issubclass(kind, (*_NO_DATA, *_CLOSED, *_HIDES)):
        return None
    try:
        own, slots = _readers[kind]
    except KeyError:
        own, slots = _readers[kind] = _readers_of(kind)
    except TypeError:  # A class that cannot be hashed.
        own, slots = _readers_of(kind)
    if own is None and not slots:
        return None
    # The descriptor of the class, and not vars(): a class may define __dict__ as a property.
    parts = list(own.__get__(value).items()) if own is not None else []
    for name, slot in slots:
        try:
            parts.append((name, slot.__get__(value)))
        except AttributeError:  # Never set.
            continue
    return [(str(name), part) for name, part in parts]


def _readers_of(kind: type) -> tuple[Any, tuple[tuple[str, Any], ...]]:
    """Return the descriptors of a class's instance dict, if any, and of its slots."""
    own: Any = None
    slots: list[tuple[str, Any]] = []
    # Read as type itself does: a metaclass may define any of these names for its classes.
    flags = type.__dict__["__flags__"].__get__(kind)
    is_read = flags & _MADE_BY_PYTHON or kind is types.SimpleNamespace
    for base in mro_of(kind) if is_read else ():
        held = members_of(base)
        if own is None and isinstance(held.get("__dict__"), _DESCRIPTORS):
            own = held["__dict__"]
        if "__slots__" in held:
            slots[:0] = [part for part in held.items() if isinstance(part[1], _DESCRIPTORS[1])]
    return own, tuple(slots)


def mro_of(kind: type) -> tuple[type, ...]:
    """Return the bases of a class in their order, read past its metaclass."""
    mro: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return mro


def members_of(kind: type) -> Mapping[str, Any]:
    """Return the names that a class itself defines, read past its metaclass."""
    members: Mapping[str, Any] = type.__dict__["__dict__"].__get__(kind)
    return members


def may_hold(value: Any) -> bool:
    """Return whether an object may hold tensors, roughly, by what the compiler can trace."""
    if isinstance(value, set | frozenset):
        return True
    return hasattr(value, "__dict__") and not isinstance(value, _NO_DATA) and not callable(value)


def why_closed(value: Any) -> str | None:
    """Return what an object is and why it was not looked into; ``None`` if it holds no tensors."""
    kind = kind_name(value)
    if issubclass(type(value), _CLOSED):
        return f"a {kind}, which shows no attributes"
    if _has_objects(value):
        return "a numpy array of objects, which is not looked into"
    if issubclass(type(value), _ONCE):
        return f"a {kind}, which can be read only once"
    if not reaches_tensor(value):
        return None
    if issubclass(type(value), (set, frozenset)):
        return f"a {kind}, which has no order to name its tensors by"
    return f"a {kind}, which holds tensors that have no name in it"


def reaches_tensor(value: Any, besides: Container[int] = ()) -> bool:
    """Return whether a tensor is reachable from a value, or there is too much to look at.

    Asked of the garbage collector, which runs no code of classes. Objects that a program shares
    are not followed: classes, modules, and the parameters of ``nn.Module``.

    Args:
        value: anything.
        besides: ids of tensors that do not count.
    """
    waiting, known = [value], {id(value): value}
    while waiting:
        value = waiting.pop()
        if issubclass(type(value), Tensor):
            if id(value) not in besides:
                return True
            continue
        if type(value) in PROXIES or _has_objects(value):
            return True
        for part in _referents(value):
            # The collector tracks what can be part of a cycle; all else refers to nothing.
            may_lead = gc.is_tracked(part) or issubclass(type(part), Tensor) or _has_objects(part)
            if may_lead and id(part) not in known:
                known[id(part)] = part
                waiting.append(part)
        if len(known) > _MOST_REACHED:
            return True
    return False


def _referents(value: Any) -> Iterable[Any]:
    kind = type(value)
    if issubclass(kind, _NOT_FOLLOWED):
        return ()
    if issubclass(kind, (nn.Module, torch.optim.Optimizer)):
        # nn.Module has a __getattr__ of its own, and subclasses may have a __getattribute__.
        return object.__getattribute__(value, "__dict__").values() if kind in _PARAMETERS else ()
    if kind is types.FunctionType:
        own = (value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__)
        return [part for part in own if part]
    if issubclass(kind, weakref.ReferenceType):
        return [*gc.get_referents(value), weakref.ReferenceType.__call__(value)]
    return gc.get_referents(value)


def _has_objects(value: Any) -> bool:
    is_array = any(base.__name__ == "ndarray" for base in mro_of(type(value)))
    return is_array and bool(value.dtype.hasobject)


def kind_name(value: Any) -> str:
    """Return the name of an object's class."""
    return type(value).__name__
