"""Finds the tensors in whatever a forward takes or returns.

Walks tuples, named tuples, lists, deques, mappings (so also ``ModelOutput``), dataclasses and
classes registered with ``torch.utils._pytree``, depth first, in their own order. Other objects are
walked by their attributes (``__dict__`` and ``__slots__``), without running code of their classes.
A leaf is named by the way to it, joined by dots: ``1.0``, ``hidden.2``, ``cache.layers.0.keys``.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
from collections import Counter, OrderedDict, UserList, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from torchtap.core.errors import EditError
from torchtap.core.torch_private import FUTURE, SCRIPT_OBJECT

_NONE: frozenset[int] = frozenset()
_ATOMS = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device)
_LISTS = (list, deque, UserList)
_BUILT_IN = frozenset({tuple, list, dict, deque, OrderedDict, defaultdict, torch.Size})
_WITH_ITEMS = (tuple, list, deque, UserList, Mapping)
_NO_DATA = (nn.Module, torch.optim.Optimizer, enum.Enum, type, partial)
"""What has attributes that do not flow: a module's parameters are not what it is called with."""
_CLOSED = (set, frozenset, SCRIPT_OBJECT, FUTURE)
"""What may hold tensors past its attributes and cannot be looked into."""
MOST_PARTS = 4096
"""Parts of one object that are looked at; a trainer or a data set may stand among arguments."""
MOST_LEVELS = 32
Leaf = tuple[str, Tensor]
Inside = Callable[[str, Tensor, str], Tensor]
Part = tuple[str, Any]
Unseen = dict[str, str]
"""Leaf name -> what stands there and why it was not looked into, as ``a set, which ...``."""


def leaves(value: Any, unseen: Unseen | None = None) -> list[Leaf]:
    """Every tensor in ``value`` with its leaf name, depth first.

    A bare tensor has the empty name. Something that contains itself is walked once, and so is an
    object that is walked by its attributes.

    Args:
        value: anything.
        unseen: takes what holds tensors, or may hold some, and was not looked into.

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
    _walk(value, "", found, set(), {}, unseen)
    return _told_apart(found)


def argument_leaves(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], unseen: Unseen | None = None
) -> list[Leaf]:
    """The tensors that a module is called with: positional first, then keywords.

    A call with one positional argument and nothing else takes that argument as it is, so a bare
    tensor has the empty name; otherwise positions are numbered and keywords named.
    """
    if len(args) == 1 and not kwargs:
        return leaves(args[0], unseen)
    found = leaves(args, unseen)
    if kwargs:
        _walk(kwargs, "", found, set(), {}, unseen)
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


def _walk(
    value: Any,
    name: str,
    found: list[Leaf],
    above: set[int],
    walked: dict[int, Any],
    unseen: Unseen | None,
) -> None:
    if isinstance(value, Tensor):
        found.append((name, value))
        return
    if isinstance(value, _ATOMS):
        return
    parts = _parts(value)
    if parts is None:
        if not torch.compiler.is_compiling():
            _look_into(value, name, found, above, walked, unseen)
        elif unseen is not None and _may_hold(value):
            unseen[name] = f"a {type(value).__name__}, which a compiled graph cannot look into"
        return
    if id(value) in above:
        return
    above.add(id(value))
    for part_name, part in parts:
        _walk(part, f"{name}.{part_name}" if name else part_name, found, above, walked, unseen)
    above.discard(id(value))
    if unseen is not None and type(value) not in _BUILT_IN:
        _note_attributes(value, name, found, unseen)


def _note_attributes(value: Any, name: str, found: list[Leaf], unseen: Unseen) -> None:
    """Tensors that a subclass of a container keeps beside its items."""
    if torch.compiler.is_compiling() or not isinstance(value, _WITH_ITEMS):
        return
    known = {id(tensor) for _, tensor in found}
    for one, part in _attributes(value) or ():
        if isinstance(part, Tensor) and id(part) not in known:
            why = f"a tensor in an attribute of a {_kind(value)}, of which the items are looked at"
            unseen[f"{name}.{one}" if name else one] = why


def _parts(value: Any) -> list[Part] | None:
    """What a container is made of, and can be made anew of."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, (tuple, *_LISTS)):
        return [(str(position), part) for position, part in enumerate(value)]
    if isinstance(value, Mapping):
        return [(str(key), part) for key, part in value.items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
        others = () if torch.compiler.is_compiling() else _attributes(value) or ()
        return [*fields.items(), *((name, part) for name, part in others if name not in fields)]
    if type(value) in _pytree.SUPPORTED_NODES:
        return _children(value)
    return None


def _children(value: Any) -> list[Part]:
    """The children of a registered class, by the keys of its registration, or else numbered."""
    node = _pytree.SUPPORTED_NODES[type(value)]
    if node.flatten_with_keys_fn is None:
        return [(str(place), part) for place, part in enumerate(node.flatten_fn(value)[0])]
    return [(_key_text(key), part) for key, part in node.flatten_with_keys_fn(value)[0]]


def _key_text(key: Any) -> str:
    if isinstance(key, _pytree.GetAttrKey):
        return key.name
    return str(key.key if isinstance(key, _pytree.MappingKey) else getattr(key, "idx", key))


# ---------------------------------------------------------------------- objects


def _look_into(
    value: Any,
    name: str,
    found: list[Leaf],
    above: Container[int],
    walked: dict[int, Any],
    unseen: Unseen | None,
) -> None:
    """Walk an object by its attributes; what objects refer to twice is walked once.

    Bounded in size and depth, since objects may be linked to everything in the program.

    Args:
        value: the object.
        name: the way to it.
        found: takes the tensors.
        above: ids of the containers that it is in.
        walked: id -> what objects have led to so far, kept alive so that ids stay unique.
        unseen: as in :func:`leaves`.
    """
    whole, whole_name, room = value, name, MOST_PARTS
    waiting = [(name, value)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Tensor):
            found.append((name, value))
            continue
        if isinstance(value, _ATOMS) or id(value) in above or id(value) in walked:
            continue
        room -= len(value) if isinstance(value, (tuple, dict, *_LISTS)) else 1
        if room < 0:
            if unseen is not None:
                unseen[whole_name] = f"a {_kind(whole)}, which holds more than {MOST_PARTS:,} parts"
            return
        parts = _parts(value)
        if parts is None:
            parts = _attributes(value)
        if parts is None:
            if unseen is not None and (why := _why_closed(value)) is not None:
                unseen[name] = why
            continue
        if name.count(".") - whole_name.count(".") > MOST_LEVELS:
            if unseen is not None:
                unseen[whole_name] = f"a {_kind(whole)}, which is more than {MOST_LEVELS} deep"
            continue
        walked[id(value)] = value
        waiting += [(f"{name}.{one}" if name else one, part) for one, part in reversed(parts)]


def _attributes(value: Any) -> list[Part] | None:
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


_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: functions and other types of C have none.
_readers: WeakKeyDictionary[type, tuple[Any, tuple[tuple[str, Any], ...]]] = WeakKeyDictionary()


def _may_hold(value: Any) -> bool:
    """The same, roughly, in what the compiler can trace."""
    if isinstance(value, set | frozenset):
        return True
    return hasattr(value, "__dict__") and not isinstance(value, _NO_DATA) and not callable(value)


def _why_closed(value: Any) -> str | None:
    """What an object is and why it was not looked into; ``None`` if it holds no tensors."""
    if isinstance(value, set | frozenset):
        holds = any(isinstance(part, Tensor) for part in value)
        return f"a {_kind(value)}, which has no order to name its tensors by" if holds else None
    if isinstance(value, _CLOSED):
        return f"a {_kind(value)}, which shows no attributes"
    if _kind(value) == "ndarray" and value.dtype.hasobject:
        return "a numpy array of objects, which is not looked into"
    if isinstance(value, Iterator):
        return f"a {_kind(value)}, which can be read only once"
    return None


def _kind(value: Any) -> str:
    return type(value).__name__


# ---------------------------------------------------------------------- replacing


def replace(
    value: Any,
    function: Callable[[str, Tensor], Tensor],
    unseen: Unseen | None = None,
    *,
    inside: Inside | None = None,
    objects: bool = True,
) -> Any:
    """The same nested value with every tensor replaced by ``function(leaf, tensor)``.

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
    if isinstance(value, Tensor):
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
    """What a module is called with, with every tensor replaced, named as in `argument_leaves`.

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
        """The value, or its like with other tensors."""
        if isinstance(value, Tensor):
            return self._new(name, value)
        if isinstance(value, _ATOMS):
            return value
        parts = _parts(value)
        if parts is None:
            if self._objects:
                self._ask_inside(value, name, above)
            return value
        if id(value) in above:
            raise EditError(f"{_named(value, name)} contains itself, and cannot be made anew.")
        above = above | {id(value)}
        if self._unseen is not None and type(value) not in _BUILT_IN:
            _note_attributes(value, name, leaves(value), self._unseen)
        new = [self.rebuild(part, f"{name}.{one}" if name else one, above) for one, part in parts]
        if all(part is old for part, (_, old) in zip(new, parts, strict=True)):
            return value
        twin = _twin(value, new, name)
        names = [one for one, _ in parts]
        if _identities(_parts(twin) or []) != _identities(zip(names, new, strict=True)):
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
        found: list[Leaf] = []
        _look_into(value, name, found, above, self._walked, self._unseen)
        for leaf, tensor in found:
            if self._new(leaf, tensor, _kind(value)) is not tensor:
                pattern = f"{name}.*" if name else leaf
                raise EditError(
                    f"The tensor at [{leaf}] is an attribute in a {_kind(value)}, which torchtap "
                    f"neither copies nor writes into: others may hold it. Leave it out "
                    f"('!PATH:PORT[{pattern}]'), use a tuple, list, dict or dataclass instead, or "
                    f"register {_kind(value)} with torch.utils._pytree.register_pytree_node."
                )


def _identities(parts: Iterable[Part]) -> list[tuple[str, int]]:
    """Which part stands under which name; a copy may list them in another order."""
    return sorted((name, id(part)) for name, part in parts)


def _twin(value: Any, new: list[Any], name: str) -> Any:
    """A container of the same type, with other parts."""
    if isinstance(value, tuple):
        return _tuple_twin(value, new)
    if isinstance(value, types.MappingProxyType):
        return types.MappingProxyType(dict(zip(value, new, strict=True)))
    if _is_registered(value):
        node = _pytree.SUPPORTED_NODES[type(value)]
        return node.unflatten_fn(new, node.flatten_fn(value)[1])
    twin = copy.copy(value)
    if isinstance(value, _LISTS):
        twin.clear()
        twin.extend(new)
    elif isinstance(value, Mapping):
        if not isinstance(value, MutableMapping):
            raise EditError(f"{_named(value, name)} cannot be written into. {_WAY_OUT}")
        twin = _apart(value, twin, new, name)
        for key, part in zip(value, new, strict=True):
            twin[key] = part
    else:
        for (field, _), part in zip(_parts(value) or (), new, strict=True):
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


def _is_registered(value: Any) -> bool:
    """Whether its parts are those of its registration."""
    is_known = isinstance(value, (*_LISTS, Mapping)) or dataclasses.is_dataclass(value)
    return not is_known and type(value) in _pytree.SUPPORTED_NODES


def _named(value: Any, name: str) -> str:
    return f"The {_kind(value)}" + (f" at [{name}]" if name else "")


_WAY_OUT = "Edit the tensors in it where they are made, or return a tuple, list or dict."
