"""Finds the tensors in whatever a forward takes or returns.

Walks tuples, named tuples, lists, mappings (so also ``ModelOutput``) and dataclasses, depth first,
in their own order. A leaf is named by the way to it, joined by dots: ``1.0``, ``hidden.2``.
"""

from __future__ import annotations

import copy
import dataclasses
import types
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from torch import Tensor

from torchtap.errors import EditError

_NONE: frozenset[int] = frozenset()
_ATOMS = (str, bytes, int, float, complex, bool, type(None))
Leaf = tuple[str, Tensor]


def leaves(value: Any) -> list[Leaf]:
    """Every tensor in ``value`` with its leaf name, depth first.

    A bare tensor has the empty name. Something that contains itself is walked once.

    Example:
        >>> import torch
        >>> [name for name, _ in leaves((torch.ones(1), {"h": [torch.ones(2), None]}))]
        ['0', '1.h.0']
        >>> [name for name, _ in leaves({"h": {"x": torch.ones(1)}})]
        ['h.x']
    """
    if isinstance(value, Tensor):
        return [("", value)]
    found: list[Leaf] = []
    _walk(value, "", found, set())
    return _told_apart(found)


def argument_leaves(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Leaf]:
    """The tensors that a module is called with: positional first, then keywords.

    A call with one positional argument and nothing else takes that argument as it is, so a bare
    tensor has the empty name; otherwise positions are numbered and keywords named.
    """
    if len(args) == 1 and not kwargs:
        return leaves(args[0])
    found = leaves(args)
    if kwargs:
        _walk(kwargs, "", found, set())
    return _told_apart(found)


def _told_apart(found: list[Leaf]) -> list[Leaf]:
    """Number leaves whose keys read the same: of ``{0: a, "0": b}`` the second is ``0~2``."""
    if len({name for name, _ in found}) == len(found):
        return found
    times: Counter[str] = Counter()
    named = []
    for name, tensor in found:
        times[name] += 1
        named.append((name if times[name] == 1 else f"{name}~{times[name]}", tensor))
    return named


def _walk(value: Any, name: str, found: list[Leaf], above: set[int]) -> None:
    if isinstance(value, Tensor):
        found.append((name, value))
        return
    if isinstance(value, _ATOMS):
        return
    parts = _parts(value)
    if parts is None or id(value) in above:
        return
    above.add(id(value))
    for part_name, part in parts:
        _walk(part, f"{name}.{part_name}" if name else part_name, found, above)
    above.discard(id(value))


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, tuple | list):
        return [(str(position), part) for position, part in enumerate(value)]
    if isinstance(value, Mapping):
        return [(str(key), part) for key, part in value.items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            (field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)
        ]
    return None


def replace(value: Any, function: Callable[[str, Tensor], Tensor]) -> Any:
    """The same nested value with every tensor replaced by ``function(leaf, tensor)``.

    Tuples are rebuilt with their own type; lists, mappings and dataclasses are copied shallowly
    and written into.

    Raises:
        EditError: a container contains itself, or cannot be made anew.

    Example:
        >>> import torch
        >>> replace({"h": (torch.ones(1), None)}, lambda leaf, tensor: tensor * 2)
        {'h': (tensor([2.]), None)}
    """
    if isinstance(value, Tensor):
        return function("", value)
    return _rebuild(value, "", _telling_apart(function))


def replace_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], function: Callable[[str, Tensor], Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a module is called with, with every tensor replaced, named as in `argument_leaves`.

    Example:
        >>> import torch
        >>> replace_arguments((torch.ones(1),), {}, lambda leaf, tensor: tensor + 1)
        ((tensor([2.]),), {})
    """
    function = _telling_apart(function)
    if len(args) == 1 and not kwargs:
        return (_rebuild(args[0], "", function),), {}
    new = tuple(_rebuild(one, str(place), function) for place, one in enumerate(args))
    return new, {name: _rebuild(one, name, function) for name, one in kwargs.items()}


def _telling_apart(function: Callable[[str, Tensor], Tensor]) -> Callable[[str, Tensor], Tensor]:
    """Gives leaves the names of :func:`leaves`, also where their keys read the same."""
    times: Counter[str] = Counter()

    def named(name: str, tensor: Tensor) -> Tensor:
        times[name] += 1
        return function(name if times[name] == 1 else f"{name}~{times[name]}", tensor)

    return named


def _rebuild(
    value: Any, name: str, function: Callable[[str, Tensor], Tensor], above: frozenset[int] = _NONE
) -> Any:
    if isinstance(value, Tensor):
        return function(name, value)
    if isinstance(value, _ATOMS):
        return value
    parts = _parts(value)
    if parts is None:
        return value
    if id(value) in above:
        raise EditError(f"{_named(value, name)} contains itself, and cannot be made anew.")
    above = above | {id(value)}
    new = [_rebuild(part, f"{name}.{one}" if name else one, function, above) for one, part in parts]
    if all(part is old for part, (_, old) in zip(new, parts, strict=True)):
        return value
    twin = _twin(value, new, name)
    made = _parts(twin)
    if made is None or [id(part) for _, part in made] != [id(part) for part in new]:
        raise EditError(f"{_named(value, name)} does not hold what it is made of. {_WAY_OUT}")
    return twin


def _twin(value: Any, new: list[Any], name: str) -> Any:
    """A container of the same type, with other parts."""
    if isinstance(value, tuple):
        return _tuple_twin(value, new)
    if isinstance(value, types.MappingProxyType):
        return types.MappingProxyType(dict(zip(value, new, strict=True)))
    twin = copy.copy(value)
    if isinstance(value, list):
        twin[:] = new
    elif isinstance(value, Mapping):
        if not isinstance(value, MutableMapping):
            raise EditError(f"{_named(value, name)} cannot be written into. {_WAY_OUT}")
        twin = _apart(value, twin, new, name)
        for key, part in zip(value, new, strict=True):
            twin[key] = part
    else:
        for field, part in zip(dataclasses.fields(value), new, strict=True):
            object.__setattr__(twin, field.name, part)
    return twin


def _tuple_twin(value: tuple[Any, ...], new: list[Any]) -> Any:
    if hasattr(value, "_fields"):
        return type(value)(*new)
    try:
        return type(value)(new)  # Also what PyTorch returns, as ``torch.return_types.max``.
    except TypeError:  # A constructor of its own.
        twin = tuple.__new__(type(value), new)
        vars(twin).update(vars(value))
        return twin


def _apart(value: MutableMapping[Any, Any], twin: Any, new: list[Any], name: str) -> Any:
    """A copy of a mapping that is written into without the original noticing.

    ``copy.copy`` shares the store of a class that keeps its items in an attribute.
    """
    if _shares(value, twin, new):
        for attribute, held in list(vars(twin).items()):
            vars(twin)[attribute] = copy.copy(held)
        if _shares(value, twin, new):
            raise EditError(f"A copy of {_named(value, name)} shares its items with it. {_WAY_OUT}")
    return twin


def _shares(value: MutableMapping[Any, Any], twin: Any, new: list[Any]) -> bool:
    """Whether what is written into the twin stands in the original; it is taken back there."""
    changed = zip(value.items(), new, strict=True)
    key, old, part = next((key, old, part) for (key, old), part in changed if part is not old)
    twin[key] = part
    is_shared = value[key] is part
    if is_shared:
        value[key] = old
    return is_shared


def _named(value: Any, name: str) -> str:
    return f"The {type(value).__name__}" + (f" at [{name}]" if name else "")


_WAY_OUT = "Edit the tensors in it where they are made, or return a tuple, list or dict."
