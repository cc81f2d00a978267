"""Finds the tensors in whatever a forward takes or returns.

Walks tuples, named tuples, lists, deques, mappings (so also ``ModelOutput``), dataclasses and
classes registered with ``torch.utils._pytree``, depth first, in their own order. Other objects are
walked by their attributes (``__dict__`` and ``__slots__``), without running code of their classes.
A leaf is named by the way to it, joined by dots: ``1.0``, ``hidden.2``, ``cache.layers.0.keys``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict, UserList, defaultdict, deque
from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from torchtap.core.attributes import (
    PROXIES,
    Part,
    attributes,
    kind_name,
    may_hold,
    reaches_tensor,
    why_closed,
)

ATOMS = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device)
LISTS = (list, deque, UserList)
BUILT_IN = frozenset({tuple, list, dict, deque, OrderedDict, defaultdict, torch.Size})
PLAIN = frozenset(ATOMS)
MOST_PARTS = 4096
"""Parts of one object that are looked at; a trainer or a data set may stand among arguments."""
MOST_LEVELS = 32
STANDS_FOR = "a weak proxy, which stands for an object that others hold"
Leaf = tuple[str, Tensor]
Unseen = dict[str, str]
"""Leaf name -> what stands there and why it was not looked into, as ``a set, which ...``."""


def leaves(value: Any, unseen: Unseen | None = None) -> list[Leaf]:
    """Return every tensor in ``value`` with its leaf name, depth first.

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
    if type(value) not in PROXIES and isinstance(value, Tensor):
        return [("", value)]
    gathered: list[Leaf] = []
    _walk(value, "", gathered, set(), {}, unseen)
    return _told_apart(gathered)


def argument_leaves(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], unseen: Unseen | None = None
) -> list[Leaf]:
    """Return the tensors that a module is called with: positional first, then keywords.

    A call with one positional argument and nothing else takes that argument as it is, so a bare
    tensor has the empty name; otherwise positions are numbered and keywords named.
    """
    if len(args) == 1 and not kwargs:
        return leaves(args[0], unseen)
    gathered = leaves(args, unseen)
    if kwargs:
        _walk(kwargs, "", gathered, set(), {}, unseen)
    return _told_apart(gathered)


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
    if type(value) in PROXIES:  # What it stands for may be gone.
        if unseen is not None:
            unseen[name] = STANDS_FOR
        return
    if isinstance(value, Tensor):
        found.append((name, value))
        return
    if isinstance(value, ATOMS):
        if unseen is not None and type(value) not in PLAIN:
            note_attributes(value, name, found, unseen)
        return
    parts = parts_of(value)
    if parts is None:
        if not torch.compiler.is_compiling():
            look_into(value, name, found, above, walked, unseen)
        elif unseen is not None and may_hold(value):
            unseen[name] = f"a {type(value).__name__}, which a compiled graph cannot look into"
        return
    if id(value) in above:
        return
    above.add(id(value))
    for part_name, part in parts:
        _walk(part, f"{name}.{part_name}" if name else part_name, found, above, walked, unseen)
    # Taken out again: a container that stands in two places is walked in both, and only one that
    # contains itself is not.
    above.discard(id(value))
    if unseen is not None and type(value) not in BUILT_IN:
        note_attributes(value, name, found, unseen)


def note_attributes(value: Any, name: str, found: list[Leaf], unseen: Unseen) -> None:
    """Tensors that a subclass of a container, of text or of a number keeps beside its items."""
    if torch.compiler.is_compiling():
        return
    known = {id(tensor) for _, tensor in found}
    kind = kind_name(value)
    for one, part in attributes(value) or ():
        if type(part) not in PLAIN and reaches_tensor(part, known):
            why = f"a tensor in an attribute of a {kind}, of which the items are looked at"
            unseen[f"{name}.{one}" if name else one] = why


def parts_of(value: Any) -> list[Part] | None:
    """Return the named parts that a container is made of, and can be made anew of."""
    # Before plain tuples, of which a named tuple is one: its fields have names.
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, (tuple, *LISTS)):
        return [(str(position), part) for position, part in enumerate(value)]
    if isinstance(value, Mapping):
        return [(str(key), part) for key, part in value.items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)
        }
        # Dynamo cannot trace descriptors of the standard library, and breaks the graph at them.
        others = () if torch.compiler.is_compiling() else attributes(value) or ()
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


def look_into(
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
    with_more: list[tuple[str, Any]] = []
    while waiting:
        name, value = waiting.pop()
        if type(value) in PROXIES:
            if unseen is not None:
                unseen[name] = STANDS_FOR
            continue
        if isinstance(value, Tensor):
            found.append((name, value))
            continue
        if isinstance(value, ATOMS) or id(value) in above or id(value) in walked:
            continue
        room -= len(value) if isinstance(value, (tuple, dict, *LISTS)) else 1
        if room < 0:
            if unseen is not None:
                unseen[whole_name] = (
                    f"a {kind_name(whole)}, which holds more than {MOST_PARTS:,} parts"
                )
            return
        parts = parts_of(value)
        if parts is None:
            parts = attributes(value)
        elif type(value) not in BUILT_IN:
            with_more.append((name, value))
        if parts is None:
            if unseen is not None and (why := why_closed(value)) is not None:
                unseen[name] = why
            continue
        if name.count(".") - whole_name.count(".") > MOST_LEVELS:
            if unseen is not None:
                unseen[whole_name] = f"a {kind_name(whole)}, which is more than {MOST_LEVELS} deep"
            continue
        # The object itself, not its id alone: attributes may be made as they are read, and a freed
        # one's id would be given to the next.
        walked[id(value)] = value
        # Reversed onto a stack, so that parts come in their own order.
        waiting += [(f"{name}.{one}" if name else one, part) for one, part in reversed(parts)]
    if unseen is not None:
        for name, value in with_more:
            note_attributes(value, name, found, unseen)
