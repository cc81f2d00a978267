"""Makes nested values anew, with other tensors in place of those found by ``tree``."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from torch import Tensor
from torch.utils import _pytree

from torchtap.core.attributes import PROXIES, Part, kind_name
from torchtap.core.errors import EditError
from torchtap.core.tree import (
    ATOMS,
    BUILT_IN,
    LISTS,
    PLAIN,
    STANDS_FOR,
    Leaf,
    Unseen,
    leaves,
    look_into,
    note_attributes,
    parts_of,
)

_NONE: frozenset[int] = frozenset()
Inside = Callable[[str, Tensor, str], Tensor]


def replace(
    value: Any,
    function: Callable[[str, Tensor], Tensor],
    unseen: Unseen | None = None,
    *,
    inside: Inside | None = None,
    objects: bool = True,
) -> Any:
    """Return the same nested value with every tensor replaced by ``function(leaf, tensor)``.

    Tuples are rebuilt with their own type, registered classes by what they are registered with;
    lists, mappings and dataclasses are copied shallowly and written into. An object that is
    walked by its attributes stays as it is: a copy would part it from those who hold it (a cache
    that the model writes into), and a write would change what the caller holds.

    Args:
        value: anything.
        function: returns the tensor to put in place of the one that it is given, or the same.
        unseen: takes what holds tensors, or may hold some, and was not looked into.
        inside: asked in place of ``function`` for tensors in such objects, with the class name of
            the object as third argument.
        objects: whether to ask for tensors in such objects too.

    Raises:
        EditError: a container contains itself, or cannot be made anew; or the function replaced a
            tensor in an object that is walked by its attributes.

    Example:
        >>> import torch
        >>> replace({"h": (torch.ones(1), None)}, lambda leaf, tensor: tensor * 2)
        {'h': (tensor([2.]), None)}
    """
    if type(value) not in PROXIES and isinstance(value, Tensor):
        return function("", value)
    return _Maker(function, unseen, inside=inside, objects=objects).rebuild(value, "")


def replace_arguments(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    function: Callable[[str, Tensor], Tensor],
    unseen: Unseen | None = None,
    *,
    inside: Inside | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replace every tensor in a module's arguments, with leaves named as in `argument_leaves`.

    Example:
        >>> import torch
        >>> replace_arguments((torch.ones(1),), {}, lambda leaf, tensor: tensor + 1)
        ((tensor([2.]),), {})
    """
    rebuild = _Maker(function, unseen, inside=inside).rebuild
    if len(args) == 1 and not kwargs:
        return (rebuild(args[0], ""),), {}
    new = tuple(rebuild(one, str(place)) for place, one in enumerate(args))
    return new, {name: rebuild(one, name) for name, one in kwargs.items()}


class _Maker:
    """Makes nested values anew, asking a function for every tensor in them."""

    __slots__ = ("_function", "_inside", "_objects", "_times", "_unseen", "_walked")

    def __init__(
        self,
        function: Callable[[str, Tensor], Tensor],
        unseen: Unseen | None,
        *,
        inside: Inside | None = None,
        objects: bool = True,
    ) -> None:
        self._function = function
        self._inside = inside
        self._objects = objects
        self._unseen = unseen
        self._times: Counter[str] = Counter()
        self._walked: dict[int, Any] = {}

    def rebuild(self, value: Any, name: str, above: frozenset[int] = _NONE) -> Any:
        """Return the value, or its like with other tensors."""
        if type(value) in PROXIES:
            if self._unseen is not None:
                self._unseen[name] = STANDS_FOR
            return value
        if isinstance(value, Tensor):
            return self._new(name, value)
        if isinstance(value, ATOMS):
            if self._unseen is not None and type(value) not in PLAIN:
                note_attributes(value, name, [], self._unseen)
            return value
        parts = parts_of(value)
        if parts is None:
            if self._objects:
                self._ask_inside(value, name, above)
            return value
        if id(value) in above:
            raise EditError(f"{_named(value, name)} contains itself, and cannot be made anew.")
        above = above | {id(value)}
        if self._unseen is not None and type(value) not in BUILT_IN:
            note_attributes(value, name, leaves(value), self._unseen)
        new = [self.rebuild(part, f"{name}.{one}" if name else one, above) for one, part in parts]
        if all(part is old for part, (_, old) in zip(new, parts, strict=True)):
            return value
        twin = _twin(value, new, name)
        names = [one for one, _ in parts]
        made, expected = parts_of(twin) or [], list(zip(names, new, strict=True))
        if not isinstance(value, Mapping):  # Of attributes the order says nothing.
            made, expected = sorted(made, key=_identity), sorted(expected, key=_identity)
        if list(map(_identity, made)) != list(map(_identity, expected)):
            raise EditError(f"{_named(value, name)} does not hold what it is made of. {_WAY_OUT}")
        return twin

    def _new(self, name: str, tensor: Tensor, holder: str = "") -> Tensor:
        """Gives leaves the names of :func:`leaves`, also where their keys read the same."""
        self._times[name] += 1
        times = self._times[name]
        name = name if times == 1 else f"{name}~{times}"
        if holder and self._inside is not None:
            return self._inside(name, tensor, holder)
        return self._function(name, tensor)

    def _ask_inside(self, value: Any, name: str, above: frozenset[int]) -> None:
        inside: list[Leaf] = []
        look_into(value, name, inside, above, self._walked, self._unseen)
        kind = kind_name(value)
        for leaf, tensor in inside:
            if self._new(leaf, tensor, kind) is not tensor:
                pattern = f"{name}.*" if name else leaf
                raise EditError(
                    f"The tensor at [{leaf}] is an attribute in a {kind}, which torchtap "
                    f"neither copies nor writes into: others may hold it. Leave it out "
                    f"('!PATH:PORT[{pattern}]'), use a tuple, list, dict or dataclass instead, or "
                    f"register {kind} with torch.utils._pytree.register_pytree_node."
                )


def _identity(part: Part) -> tuple[str, int]:
    name, value = part
    return name, id(value)


def _twin(value: Any, new: list[Any], name: str) -> Any:
    """Return a container of the same type, with other parts.

    A mapping is asked for its ``keys()``: a ``TensorDict`` iterates over its rows.
    """
    if isinstance(value, tuple):
        return _tuple_twin(value, new)
    if isinstance(value, types.MappingProxyType):
        return types.MappingProxyType(dict(zip(value, new, strict=True)))
    if _is_registered(value):
        node = _pytree.SUPPORTED_NODES[type(value)]
        return node.unflatten_fn(new, node.flatten_fn(value)[1])
    # A copy, so that attributes beside the items (of a UserList, a Cache) come along.
    twin = copy.copy(value)
    if isinstance(value, LISTS):
        twin.clear()
        twin.extend(new)
    elif isinstance(value, Mapping):
        if not isinstance(value, MutableMapping):
            raise EditError(f"{_named(value, name)} cannot be written into. {_WAY_OUT}")
        twin = _written(value, twin, new, name)
        _put_in_order(twin, value)
        _mirror(twin, value, new)
    else:
        for (field, _), part in zip(parts_of(value) or (), new, strict=True):
            # Past the class: a frozen dataclass refuses, and a __setattr__ of its own may do
            # anything.
            object.__setattr__(twin, field, part)
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


def _written(value: MutableMapping[Any, Any], twin: Any, new: list[Any], name: str) -> Any:
    """Write parts into a copy of a mapping, which may refuse them: others must have its rows."""
    try:
        twin = _apart(value, twin, new, name)
        for key, part in zip(value.keys(), new, strict=True):
            twin[key] = part
    except (RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, EditError):
            raise
        raise EditError(f"{_named(value, name)} refuses another part: {error}") from error
    return twin


def _apart(value: MutableMapping[Any, Any], twin: Any, new: list[Any], name: str) -> Any:
    """Return a copy of a mapping that is written into without the original noticing.

    ``copy.copy`` shares the store of a class that keeps its items in an attribute.
    """
    if _shares(value, twin, new):
        for attribute, held in list(vars(twin).items()):
            vars(twin)[attribute] = copy.copy(held)
        if _shares(value, twin, new):
            raise EditError(f"A copy of {_named(value, name)} shares its items with it. {_WAY_OUT}")
    return twin


def _put_in_order(twin: MutableMapping[Any, Any], value: Mapping[Any, Any]) -> None:
    """Give a copy the keys of the original, in their order.

    A class may make its copies of its fields, as ``ModelOutput`` does: a field that was set later
    then stands elsewhere, and ``output[0]`` is another tensor. Items that a class forbids to take
    out are taken out by the methods of ``dict``.
    """
    if list(twin.keys()) == list(value.keys()):
        return
    kind: Any = next((one for one in (OrderedDict, dict) if isinstance(twin, one)), type(twin))
    held = {key: twin[key] for key in value.keys()}  # noqa: SIM118
    for key in list(twin.keys()):
        kind.__delitem__(twin, key)
    for key, part in held.items():
        kind.__setitem__(twin, key, part)


def _mirror(twin: Any, value: Mapping[Any, Any], new: list[Any]) -> None:
    """Let attributes that are also keys differ from their items where those of the original do."""
    made = {id(old): part for old, part in zip(value.values(), new, strict=True)}
    keys = set(value.keys())
    for name, held in getattr(value, "__dict__", {}).items():
        if name in keys:
            vars(twin)[name] = made.get(id(held), held)


def _shares(value: MutableMapping[Any, Any], twin: Any, new: list[Any]) -> bool:
    """Return whether a write into the twin also changes the original; it is undone there."""
    changed = zip(value.items(), new, strict=True)
    key, old, part = next((key, old, part) for (key, old), part in changed if part is not old)
    twin[key] = part
    is_shared = value[key] is part
    if is_shared:
        value[key] = old
    return is_shared


def _is_registered(value: Any) -> bool:
    """Return whether a value's parts are those of its registration with pytree."""
    is_known = isinstance(value, (*LISTS, Mapping)) or dataclasses.is_dataclass(value)
    return not is_known and type(value) in _pytree.SUPPORTED_NODES


def _named(value: Any, name: str) -> str:
    return f"The {kind_name(value)}" + (f" at [{name}]" if name else "")


_WAY_OUT = "Edit the tensors in it where they are made, or return a tuple, list or dict."
