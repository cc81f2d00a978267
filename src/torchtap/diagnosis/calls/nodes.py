"""A held call as JSON and flat tensors: the other side of ``standalone.reading``."""

from __future__ import annotations

import base64
import collections
import enum
import functools
import importlib
import json
import logging
import math
import random
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of, obstacle
from torchtap.diagnosis.calls.flat_tensors import FlatTensors

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
_TORCH = (torch.dtype, torch.layout, torch.memory_format)
_HOMES = ("torch", "torch.nn.functional", "torch._C._nn", "torch.special", "math", "operator")
"""Where functions of C are found that do not say where they are."""


class UnwritableError(Exception):
    """A value that cannot be written without pickle; the argument says why."""


class Nodes:
    """Turns values into nodes; what is one object is written once.

    Args:
        tensors: takes the elements of tensors.

    Attributes:
        notes: what was left out.
    """

    def __init__(self, tensors: FlatTensors) -> None:
        self.notes: list[str] = []
        self._tensors = tensors
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
        """The node of one value."""
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else ["float", repr(value)]
        if id(value) in self._known:
            return ["ref", self._known[id(value)][0]]
        for kinds, write in _WRITERS:
            if isinstance(value, kinds):
                return write(self, value)
        return self.object(value)

    def part(self, value: Any, name: str) -> Node:
        """The node of a part; its name is kept for messages, if it cannot be written."""
        self._way.append(name)
        found = self.node(value)
        self._way.pop()
        return found

    def parts(self, values: Any) -> list[Node]:
        """The nodes of items in their order."""
        return [self.part(one, f"[{place}]") for place, one in enumerate(values)]

    def pairs(self, table: Mapping[Any, Any]) -> list[list[Node]]:
        """The nodes of keys and values."""
        return [[self.node(key), self.part(one, f"[{key!r}]")] for key, one in table.items()]

    def number(self, value: Any) -> int:
        """The number of an object, by which it is referred to; it is kept alive meanwhile."""
        return self._known.setdefault(id(value), (len(self._known), value))[0]

    # ------------------------------------------------------------------ tensors

    def tensor(self, value: Tensor) -> Node:
        """A tensor: its elements go to the flat tensors."""
        why = obstacle(value)
        if why is not None:
            raise UnwritableError(f"it is {why}")
        kind, traits, parts = self._tensors.describe(value)
        number = self.number(value)
        if value.requires_grad:
            traits["grad"] = True
        if isinstance(value, nn.Parameter):
            traits["class"] = name_of(type(value))
        return ["tensor", number, kind, traits, [self._inner(one) for one in parts]]

    def _inner(self, part: Tensor) -> Node:
        return self.tensor(part.detach())

    # ------------------------------------------------------------------ modules and objects

    def module(self, value: nn.Module) -> Node:
        """A module: its class by name, its tables and its attributes."""
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
        """Those hooks that can be written; the others are noted."""
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
        """An object of a class: its items, if it is a container, and its attributes."""
        kind = type(value)
        if isinstance(value, (int, str, float, bytes, set, frozenset, types.ModuleType)):
            raise UnwritableError(f"it is {_named(value)}, a class of its own")
        if not isinstance(value, _CONTAINERS) and _hides_state(kind):
            raise UnwritableError(
                f"it is {_named(value)}, whose state only pickle could hold; {_WAY}"
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


_WAY = "hand in tensors, lists, dicts or dataclasses"


def _state(value: Any) -> dict[str, Any]:
    own = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                own.setdefault(name, getattr(value, name))
    if isinstance(value, collections.defaultdict):
        own["default_factory"] = value.default_factory
    return own


def _hides_state(kind: type) -> bool:
    """Return whether a class, or a base of it, is made in C and holds what no attribute shows."""
    shown = (object, types.SimpleNamespace)
    return any(base not in shown and not base.__flags__ & _MADE_BY_PYTHON for base in kind.__mro__)


def _named(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def name_of(value: Any) -> str:
    """``package.module:Outer.inner`` of a class or function that can be imported.

    Raises:
        UnwritableError: it cannot be, as it stands in a function, in ``__main__``, or nowhere.
    """
    path: Any = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    home: Any = getattr(value, "__module__", None)
    what = f"{'class' if isinstance(value, type) else 'function'} {path}"
    if "<lambda>" in path:
        raise UnwritableError("it is a lambda; give it a name in a module that can be imported")
    if "<locals>" in path:
        raise UnwritableError(f"the {what} is made in a function; move it into a module of its own")
    if home == "__main__":
        raise UnwritableError(
            f"the {what} is of __main__, which no other process can import; move it into a file "
            f"that is imported"
        )
    own = getattr(value, "__name__", path)  # Of torch.relu, which is said to be of another class.
    for module in dict.fromkeys(one for one in (home, *_HOMES) if one):
        for known in dict.fromkeys((path, own)):
            if _found(module, known) is value:
                return f"{module}:{known}"
    raise UnwritableError(f"the {what} of {home} cannot be imported by that name")


def _found(module: str, path: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        return None
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


# ---------------------------------------------------------------------- kinds of values


def _numbered(kind: str) -> Callable[[Nodes, Any], Node]:
    def write(nodes: Nodes, value: Any) -> Node:
        return [kind, nodes.number(value), nodes.parts(value)]

    return write


def _exactly(*kinds: type) -> Any:
    """Instances of a class itself and not of one that inherits from it."""
    return kinds


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


def _refuse_iterator(nodes: Nodes, value: Any) -> Node:
    raise UnwritableError(f"it is {_named(value)}, which can be read only once; {_WAY}")


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
    """A dict, list or set; one of an own class is an object with items."""
    write = _PLAIN.get(type(value))
    return nodes.object(value) if write is None else write(nodes, value)


def _tuple(nodes: Nodes, value: tuple[Any, ...]) -> Node:
    if type(value) is torch.Size:
        return ["size", list(map(int, value))]
    if type(value) is tuple:
        return ["tuple", nodes.parts(value)]
    return nodes.object(value)


_WRITERS: tuple[tuple[Any, Callable[[Nodes, Any], Node]], ...] = (
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
    (functools.partial, _partial),
    (logging.Logger, lambda nodes, value: ["logger", value.name]),
    (types.MethodType, _method),
    ((types.FunctionType, types.BuiltinFunctionType), _function),
    (type, lambda nodes, value: ["name", name_of(value)]),
    (collections.abc.Iterator, _refuse_iterator),
)  # fmt: skip


def as_json(nodes: Mapping[str, Node]) -> str:
    """Nodes as text; each of the first level on lines of its own."""
    return json.dumps(nodes, ensure_ascii=False, allow_nan=False)
