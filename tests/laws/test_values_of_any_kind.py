"""Whatever a module returns or takes: each tensor in it is recorded, or its place is absent.

Drawn are values nested in each other; what is in them is counted as they are made, and not by
looking into them.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net


@dataclasses.dataclass
class _Data:
    a: Any
    b: Any = None


class _Plain:
    def __init__(self, held: Any) -> None:
        self.held = held


class _Slots:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


class _Behind:
    """Hands out by a property what it keeps."""

    def __init__(self, held: Any) -> None:
        self._held = held

    @property
    def held(self) -> Any:
        return self._held

    def method(self) -> Any:
        return self._held


class _Error(Exception):
    pass


class _List(list[Any]):
    pass


class _Dict(dict[str, Any]):
    pass


class _Text(str):
    held: Any


_Pair = collections.namedtuple("_Pair", "a b")
Wrap = Callable[[Any], Any]


def _closure(value: Any) -> Any:
    return lambda: value


def _default(value: Any) -> Any:
    def function(given: Any = value) -> Any:
        return given

    return function


def _beside(kind: Any) -> Wrap:
    def make(value: Any) -> Any:
        made = kind()
        made.held = value
        return made

    return make


def _generator(value: Any) -> Any:
    yield value


class _Key:
    """Can stand in a set, whatever it holds."""

    def __init__(self, held: Any) -> None:
        self.held = held


KINDS: dict[str, Wrap] = {
    "list": lambda value: [1, value],
    "tuple": lambda value: (value, "a"),
    "dict": lambda value: {"a": value, 2: None},
    "named tuple": lambda value: _Pair(value, 0),
    "deque": lambda value: collections.deque([value]),
    "ordered dict": lambda value: collections.OrderedDict(a=value),
    "default dict": lambda value: collections.defaultdict(list, a=value),
    "user dict": lambda value: collections.UserDict(a=value),
    "chain map": lambda value: collections.ChainMap({"a": value}, {"b": 1}),
    "mapping proxy": lambda value: types.MappingProxyType({"a": value}),
    "namespace": lambda value: types.SimpleNamespace(a=value),
    "dataclass": lambda value: _Data(1, value),
    "object": _Plain,
    "slots": _Slots,
    "property": _Behind,
    "set": lambda value: {_Key(value), 1},
    "frozen set": lambda value: frozenset([_Key(value)]),
    "generator": _generator,
    "iterator": lambda value: iter([value]),
    "map": lambda value: map(str, [value]),
    "closure": _closure,
    "default": _default,
    "method": lambda value: _Behind(value).method,
    "partial": lambda value: functools.partial(max, 1, value),
    "keyword of a partial": lambda value: functools.partial(max, key=value),
    "exception": lambda value: ValueError("a", value),
    "own exception": lambda value: _Error(value),
    "attribute of an exception": _beside(ValueError),
    "views of a dict": lambda value: {"a": value}.values(),
    "beside a list": _beside(_List),
    "beside a dict": _beside(_Dict),
    "beside a text": _beside(_Text),
    "context": contextlib.nullcontext,
    "weak reference": lambda value: weakref.ref(_held(_Key(value))),
}


_kept: list[Any] = []


def _held(value: Any) -> Any:
    """The program holds what is referred to weakly."""
    _kept.append(value)
    return value


TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda tensor: tensor,
    "weak reference": lambda tensor: weakref.ref(_held(tensor)),
    "proxy": lambda tensor: weakref.proxy(_held(tensor)),
    "parameters": lambda tensor: nn.ParameterList([tensor.detach()]),
    "parameter dict": lambda tensor: nn.ParameterDict({"a": tensor.detach()}),
    "method": lambda tensor: tensor.add,
    "distribution": lambda tensor: torch.distributions.Normal(tensor, 1.0),
}


ways = st.tuples(
    st.sampled_from(sorted(TENSORS)), st.lists(st.sampled_from(sorted(KINDS)), max_size=4)
)


def _made(way: tuple[str, list[str]], tensor: Tensor) -> Any:
    value = TENSORS[way[0]](tensor)
    for kind in way[1]:
        value = KINDS[kind](value)
    return value


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(ways, min_size=1, max_size=3))
def test_a_tensor_is_recorded_or_absent_in_whatever_it_flows(
    drawn: list[tuple[str, list[str]]],
) -> None:
    """Below the place of each that was drawn stands a record or a reason."""
    _kept.clear()
    inner = Net(lambda net, x, *others: (x, *(_made(way, x * k) for k, way in enumerate(drawn))))
    model = Net(lambda net, x: net.inner(x, *(_made(way, x + 1) for way in drawn))[0], inner=inner)
    with tt.watch(model, "inner:input,output") as w:
        y = model(torch.ones(2))
    assert torch.equal(y, torch.ones(2))
    for port in ("input", "output"):
        sites = [*w.run.sites, *(one.site for one in w.absent)]
        leaves = {one.leaf.split(".")[0] for one in sites if one.port == port}
        assert leaves == {str(place) for place in range(len(drawn) + 1)}, (w.run.sites, w.absent)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(sorted(KINDS)), max_size=4))
def test_what_holds_no_tensor_is_not_called_absent(kinds: list[str]) -> None:
    value: Any = 3.0
    for kind in kinds:
        value = KINDS[kind](value)
    model = Net(lambda net, x: (x, value))
    with tt.watch(model, ".:output") as w:
        model(torch.ones(2))
    is_read_once = any(kind in ("generator", "iterator", "map") for kind in kinds)
    assert is_read_once or not w.absent
