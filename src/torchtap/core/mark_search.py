"""Tell from a model's code, without running any of it, whether it may call ``tt.mark``.

Followed are the methods of its classes and what its modules hold, and from there each function,
class and object that is named or held. Objects are read by their types and their own dicts alone,
so that descriptors, proxies, lazily loaded modules and objects that raise when they are asked for
an attribute are passed over like all others.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from torchtap.core.attributes import attributes, members_of, mro_of
from torchtap.core.tree import ATOMS

_MARK = "mark"
_OWN = "torchtap"
_MOST_PARTS = 100_000
"""Functions, classes and objects that are looked at; beyond, a model may mark."""
_NOT_FOLLOWED = (*ATOMS, Tensor, ModuleType)
_SEQUENCES = (list, tuple, set, frozenset)
_INSTALLED = {"site-packages", "dist-packages"}
_HOLDERS: dict[type, tuple[str, ...]] = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.partial: ("func", "args", "keywords"),
    type(functools.lru_cache(len)): ("__dict__",),
    MethodType: ("__func__", "__self__"),
}
"""Classes made in C that hold functions, and in which attributes."""


def may_mark(model: nn.Module) -> bool:
    """Return whether any code that a model's classes, hooks and attributes lead to names ``mark``.

    Code of packages that are installed and do not import torchtap is not read.

    Args:
        model: any module.
    """
    return _Search().finds(model.modules())


class _Search:
    """Goes from part to part, each once."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}  # With the parts, so that no other gets their ids.
        self._is_foreign: dict[str, bool] = {}

    def finds(self, start: Iterable[Any]) -> bool:
        """Return whether a mention of ``mark`` is found from these objects."""
        waiting = list(start)
        while waiting:
            part = waiting.pop()
            if id(part) in self._known or issubclass(type(part), _NOT_FOLLOWED):
                continue
            self._known[id(part)] = part
            if len(self._known) > _MOST_PARTS or _is_mark(part):
                return True
            if issubclass(type(part), FunctionType) and not self._is_passed(part.__module__):
                if any(_mentions(code) for code in _codes(part.__code__)):
                    return True
                waiting += _named(part)
            waiting += self._held(part)
        return False

    def _held(self, part: Any) -> Iterator[Any]:
        """Yield the objects that a part leads to, except for the names in its code."""
        kind = type(part)
        if kind is FunctionType:
            yield from _kept(part)
        elif issubclass(kind, type):
            yield from self._members(part)
        elif issubclass(kind, dict):
            yield from (*dict.keys(part), *dict.values(part))
        elif issubclass(kind, _SEQUENCES):
            yield from next(one for one in _SEQUENCES if issubclass(kind, one)).__iter__(part)
        elif issubclass(kind, nn.Module):
            yield kind
            yield from _own_dict(part).values()
        elif _package_of(kind) != _OWN:  # Hooks of ours on the model lead to what it had before.
            yield kind
            yield from _from_holder(part)
            yield from (value for _, value in attributes(part) or ())

    def _members(self, cls: type) -> Iterator[Any]:
        for base in mro_of(cls):
            held = members_of(base)
            if not self._is_passed(held.get("__module__")):
                yield from held.values()

    def _is_passed(self, home: Any) -> bool:
        """Return whether code of a module is skipped: not the user's, and it knows no torchtap."""
        package = _first(home)
        if package not in self._is_foreign:
            self._is_foreign[package] = _is_foreign(package)
        return self._is_foreign[package]


def _is_mark(part: Any) -> bool:
    is_named = type(part) is FunctionType and part.__name__ == _MARK
    return is_named and _first(part.__module__) == _OWN


def _package_of(kind: type) -> str:
    return _first(members_of(kind).get("__module__"))


def _first(home: Any) -> str:
    """Return the package of a module by its name; nothing for what is not a name."""
    return home.partition(".")[0] if type(home) is str else ""


def _mentions(code: CodeType) -> bool:
    return _MARK in code.co_names or _MARK in code.co_consts  # Of getattr(tt, "mark").


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code, and that of the functions which it makes."""
    waiting = [code]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [const for const in code.co_consts if type(const) is CodeType]


def _named(function: FunctionType) -> Iterator[Any]:
    """Yield what a function's code refers to by global names, and by names inside of modules."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    scope = function.__globals__
    named = [dict.get(scope, name) for name in names]
    yield from named
    for module in named:
        if issubclass(type(module), ModuleType):
            held = _own_dict(module)
            yield from (held[name] for name in names if name in held)


def _kept(function: FunctionType) -> Iterator[Any]:
    """Yield a function's attributes (such as one that it wraps), defaults and closure contents."""
    yield from _own_dict(function).values()
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # Not filled yet.
            continue


def _from_holder(part: Any) -> Iterator[Any]:
    for kind, names in _HOLDERS.items():
        for name in names if issubclass(type(part), kind) else ():
            yield members_of(kind)[name].__get__(part)


def _own_dict(part: Any) -> dict[str, Any]:
    """Return the attributes of a function, module or ``nn.Module``, past any ``__getattr__``."""
    own_dict: dict[str, Any] = object.__getattribute__(part, "__dict__")
    return own_dict


def _is_foreign(package: str) -> bool:
    """Return whether a package is torch, of Python, or installed and without torchtap's names."""
    if package == "torch" or package in sys.stdlib_module_names:
        return True
    file = _values_by_name(sys.modules.get(package)).get("__file__")
    if type(file) is not str or not _INSTALLED & {*PurePath(file).parts}:
        return False
    modules = [one for name, one in [*sys.modules.items()] if name.partition(".")[0] == package]
    own = sys.modules.get(_OWN)
    held = (part for module in modules for part in list(_values_by_name(module).values()))
    return not any(part is own or _is_mark(part) for part in held)


def _values_by_name(module: Any) -> dict[str, Any]:
    return _own_dict(module) if issubclass(type(module), ModuleType) else {}
