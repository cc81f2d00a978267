"""Finds the tensors in whatever a forward takes or returns.

Walks tuples, named tuples, lists, mappings (so also ``ModelOutput``) and dataclasses, depth first,
in their own order. A leaf is named by the way to it, joined by dots: ``1.0``, ``hidden.2``.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

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

    Containers are rebuilt with their own type; dataclasses and mappings that cannot be rebuilt
    from their parts are copied shallowly and written into.

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


def _rebuild(value: Any, name: str, function: Callable[[str, Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(name, value)
    if isinstance(value, _ATOMS):
        return value
    parts = _parts(value)
    if parts is None:
        return value
    new = [_rebuild(part, f"{name}.{one}" if name else one, function) for one, part in parts]
    if all(part is old for part, (_, old) in zip(new, parts, strict=True)):
        return value
    if isinstance(value, tuple):
        return type(value)(*new) if hasattr(value, "_fields") else type(value)(new)
    if isinstance(value, list):
        return type(value)(new)
    twin = copy.copy(value)
    if isinstance(value, Mapping):
        for key, part in zip(value, new, strict=True):
            twin[key] = part
    else:
        for (field, _), part in zip(parts, new, strict=True):
            object.__setattr__(twin, field, part)
    return twin
