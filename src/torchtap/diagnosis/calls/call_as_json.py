"""A held call as JSON and flat tensors: the other side of ``standalone.read_call``."""

from __future__ import annotations

import collections
import inspect
import json
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from torchtap.core.errors import InputError
from torchtap.core.tensors import obstacle
from torchtap.diagnosis.calls.flat_tensors import FlatTensors
from torchtap.diagnosis.calls.importable import WAY, UnwritableError, in_words, name_of

Node = Any
_TABLES = (
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)
"""Tables of a module that a call depends on; those about state dicts are left out."""
_HOOKS = frozenset(name for name in _TABLES if name.endswith("_hooks"))
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training", "_is_full_backward_hook"}
_CONTAINERS = (tuple, list, dict)
_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE.
Writers = Sequence[tuple[Any, Callable[["Nodes", Any], Node]]]
"""Classes, and how a value of them is written; the first that fits counts."""


class Nodes:
    """Turns values into nodes; what is one object is written once.

    Args:
        tensors: takes the elements of tensors.
        writers: of all values that are no plain data.

    Attributes:
        notes: what was left out.
    """

    def __init__(self, tensors: FlatTensors, writers: Writers) -> None:
        self.notes: list[str] = []
        self._tensors = tensors
        self._writers = writers
        self._known: dict[int, tuple[int, Any]] = {}
        self._way: list[str] = []

    def write(self, value: Any, place: str) -> Node:
        """Return the node of a value.

        Raises:
            InputError: it holds something that cannot be written; named with its place.
        """
        self._way = [place]
        try:
            return self.node(value)
        except UnwritableError as error:
            raise InputError(f"{''.join(self._way)} cannot be written: {error}") from None

    def node(self, value: Any) -> Node:
        """Return the node of one value."""
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else ["float", repr(value)]
        if id(value) in self._known:
            return ["ref", self._known[id(value)][0]]
        for kinds, write in self._writers:
            if isinstance(value, kinds):
                return write(self, value)
        return self.object(value)

    def part(self, value: Any, name: str) -> Node:
        """Return the node of a part; its name is kept for messages, if it cannot be written."""
        self._way.append(name)
        node = self.node(value)
        self._way.pop()
        return node

    def parts(self, values: Any) -> list[Node]:
        """Return the nodes of items in their order."""
        return [self.part(one, f"[{place}]") for place, one in enumerate(values)]

    def pairs(self, table: Mapping[Any, Any]) -> list[list[Node]]:
        """Return the nodes of keys and values."""
        return [[self.node(key), self.part(one, f"[{key!r}]")] for key, one in table.items()]

    def number(self, value: Any) -> int:
        """The number of an object, by which it is referred to; it is kept alive meanwhile."""
        return self._known.setdefault(id(value), (len(self._known), value))[0]

    # ------------------------------------------------------------------ tensors

    def tensor(self, value: Tensor) -> Node:
        """Return a tensor: its elements go to the flat tensors."""
        why = obstacle(value)
        if why is not None:
            raise UnwritableError(f"it is {why}")
        kind, traits, parts = self._tensors.describe(value)
        number = self.number(value)
        if value.requires_grad:
            traits["grad"] = True
        if isinstance(value, nn.Parameter):
            traits["class"] = name_of(type(value))
        return ["tensor", number, kind, traits, [self._inner(part) for part in parts]]

    def _inner(self, part: Tensor) -> Node:
        return self.tensor(part.detach())

    # ------------------------------------------------------------------ modules and objects

    def module(self, value: nn.Module) -> Node:
        """Return a module: its class by name, its tables and its attributes."""
        if isinstance(value, torch.jit.ScriptModule):
            raise UnwritableError("it is a ScriptModule, whose code is in no class")
        number = self.number(value)
        kind, how = type(value), "module"
        if parametrize.is_parametrized(value):
            kind, how = kind.__bases__[0], "parametrized"
        name = name_of(kind)
        tables = {}
        for table in _TABLES:
            held = getattr(value, table)
            if table in _HOOKS:
                held = self._hooks(held, table)
            if held:
                tables[table] = self._table(held)
        own = {one: part for one, part in vars(value).items() if one not in _OF_EVERY_MODULE}
        return [how, number, name, tables, self._attributes(own)]

    def _table(self, held: Any) -> Node:
        if isinstance(held, set):
            return ["set", self.number(held), sorted(held)]
        pairs = [[self.node(key), self.part(one, f".{key}")] for key, one in held.items()]
        return ["dict", self.number(held), pairs]

    def _hooks(self, held: Mapping[int, Any], table: str) -> dict[int, Any]:
        """Return the hooks that can be written; the others are noted."""
        kept: dict[int, Any] = {}
        for key, hook in held.items():
            depth = len(self._way)
            known = dict(self._known)
            try:
                self.node(hook)
            except UnwritableError as error:
                del self._way[depth:]
                self.notes.append(f"a hook of {''.join(self._way)} is not written: {error}")
            else:
                kept[key] = hook
            self._known = known
        return kept

    def _attributes(self, own: Mapping[str, Any]) -> Node:
        pairs = [[name, self.part(one, f".{name}")] for name, one in own.items()]
        return ["dict", self.number(own), pairs]

    def object(self, value: Any) -> Node:
        """Return an object of a class: its items, if it is a container, and its attributes."""
        kind = type(value)
        if isinstance(value, (int, str, float, bytes, set, frozenset, types.ModuleType)):
            raise UnwritableError(f"it is {in_words(value)}, a class of its own")
        if not isinstance(value, _CONTAINERS) and _hides_state(kind):
            raise UnwritableError(
                f"it is {in_words(value)}, whose state only pickle could hold; {WAY}"
            )
        name = name_of(kind)
        # Of a tuple before its number: it cannot refer to itself.
        items: list[Node] = self.parts(value) if isinstance(value, tuple) else []
        number = self.number(value)
        if isinstance(value, dict):
            items = self.pairs(value)
        elif isinstance(value, list):
            items = self.parts(value)
        return ["object", number, name, items, self._attributes(_state(value))]


def _state(value: Any) -> dict[str, Any]:
    own = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            name = _mangled(slot, kind)
            is_shown = inspect.getattr_static(type(value), name, None) is kind.__dict__.get(name)
            # A property of a class below may stand in a slot's place, as in pathlib since 3.13.
            if is_shown and name not in ("__dict__", "__weakref__") and hasattr(value, name):
                own.setdefault(name, getattr(value, name))
    if isinstance(value, collections.defaultdict):
        own["default_factory"] = value.default_factory
    return own


def _mangled(name: str, kind: type) -> str:
    """Return the name under which a class holds what its body calls ``__name``."""
    is_private = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if is_private else name


def _hides_state(kind: type) -> bool:
    """Return whether a class, or a base of it, is made in C and holds what no attribute shows."""
    shown = (object, types.SimpleNamespace)
    return any(base not in shown and not base.__flags__ & _MADE_BY_PYTHON for base in kind.__mro__)


def as_json(nodes: Mapping[str, Node]) -> str:
    """Nodes as text; each of the first level on lines of its own."""
    return json.dumps(nodes, ensure_ascii=False, allow_nan=False)
