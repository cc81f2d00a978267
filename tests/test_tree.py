"""Finding and replacing tensors in whatever a forward takes or returns."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from torchtap.tree import argument_leaves, leaves, replace

Point = namedtuple("Point", "x y")


@dataclass
class Loose:
    a: Any
    b: Any = None


@dataclass(frozen=True, slots=True)
class Tight:
    a: Any
    b: Any = None


def number(value: float) -> Tensor:
    return torch.tensor(value)


def named(value: Any) -> dict[str, float]:
    return {name: tensor.item() for name, tensor in leaves(value)}


ONE, TWO = number(1.0), number(2.0)
VALUES = {
    "tensor": (ONE, {"": 1}),
    "none": (None, {}),
    "atoms": ((1, 2.0, "text", b"bytes", None, 3j, True), {}),
    "tuple": ((ONE, None, TWO), {"0": 1, "2": 2}),
    "list": ([ONE, [TWO]], {"0": 1, "1.0": 2}),
    "dict": ({"a": ONE, "b": {"c": TWO}}, {"a": 1, "b.c": 2}),
    "dict by number": ({0: ONE, (1, 2): TWO}, {"0": 1, "(1, 2)": 2}),
    "named tuple": (Point(ONE, TWO), {"x": 1, "y": 2}),
    "dataclass": (Loose(ONE, [TWO]), {"a": 1, "b.0": 2}),
    "dataclass with slots": (Tight(ONE, TWO), {"a": 1, "b": 2}),
    "model output": (
        BaseModelOutput(last_hidden_state=ONE, hidden_states=(TWO,)),
        {"last_hidden_state": 1, "hidden_states.0": 2},
    ),
    "the same twice": ([ONE, ONE], {"0": 1, "1": 1}),
    "other things": ([object(), {ONE}, torch.float32, torch.Size([1])], {}),
    "a class": (Loose, {}),
}
every_value = pytest.mark.parametrize(("value", "found"), list(VALUES.values()), ids=list(VALUES))


@every_value
def test_every_tensor_is_found_by_its_name(value: Any, found: dict[str, float]) -> None:
    assert named(value) == found


@every_value
def test_every_tensor_is_replaced_and_the_rest_stays(value: Any, found: dict[str, float]) -> None:
    new = replace(value, lambda leaf, tensor: tensor + 10)
    assert type(new) is type(value)
    assert named(new) == {name: number + 10 for name, number in found.items()}
    assert named(value) == found


@every_value
def test_replacing_nothing_gives_the_same_object(value: Any, found: dict[str, float]) -> None:
    assert replace(value, lambda leaf, tensor: tensor) is value


def test_replacing_tells_the_leaf() -> None:
    asked = []
    replace({"a": [ONE, TWO]}, lambda leaf, tensor: asked.append(leaf) or tensor)
    assert asked == ["a.0", "a.1"]


def test_tensors_come_depth_first_in_their_own_order() -> None:
    value = OrderedDict(z=ONE, a=(TWO, {"y": ONE, "b": TWO}))
    assert [name for name, _ in leaves(value)] == ["z", "a.0", "a.1.y", "a.1.b"]


def test_something_that_contains_itself_is_walked_once() -> None:
    value: list[Any] = [ONE]
    value.append(value)
    assert named(value) == {"0": 1}


def test_a_mapping_that_is_no_dict_is_walked() -> None:
    assert named(MappingProxyType({"a": ONE})) == {"a": 1}


def test_a_dataclass_field_that_was_never_set_is_passed_over() -> None:
    @dataclass
    class Late:
        a: Any
        b: Any = field(init=False)

    assert named(Late(ONE)) == {"a": 1}


def test_a_tensor_subclass_is_a_leaf() -> None:
    parameter = torch.nn.Parameter(torch.ones(()))
    assert leaves((parameter,))[0][1] is parameter


@pytest.mark.parametrize(
    ("args", "kwargs", "names"),
    [
        ((ONE,), {}, [""]),
        (((ONE, TWO),), {}, ["0", "1"]),
        (({"h": ONE},), {}, ["h"]),
        ((ONE, TWO), {}, ["0", "1"]),
        ((ONE,), {"mask": TWO}, ["0", "mask"]),
        ((ONE,), {"flag": True}, ["0"]),
        ((), {"x": ONE, "y": [TWO]}, ["x", "y.0"]),
        ((), {}, []),
        ((1, ONE), {}, ["1"]),
    ],
)
def test_arguments_are_positional_first(args: Any, kwargs: Any, names: list[str]) -> None:
    assert [name for name, _ in argument_leaves(args, kwargs)] == names


words = st.text("abc", min_size=1, max_size=3)
nested = st.recursive(
    st.one_of(st.none(), st.integers(), st.floats(-9, 9).map(number)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(words, inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Tight, inner, inner),
    ),
    max_leaves=8,
)


def by_hand(value: Any, way: str = "") -> list[tuple[str, Tensor]]:
    """A second way to say the same, in a few lines."""
    if isinstance(value, Tensor):
        return [(way[1:], value)]
    if isinstance(value, Tight):
        pairs: Any = (("a", value.a), ("b", value.b))
    elif isinstance(value, Point):
        pairs = value._asdict().items()
    elif isinstance(value, dict):
        pairs = value.items()
    else:
        pairs = enumerate(value) if isinstance(value, list | tuple) else ()
    return [leaf for key, part in pairs for leaf in by_hand(part, f"{way}.{key}")]


@given(nested)
def test_leaves_agree_with_a_plain_walk(value: Any) -> None:
    found, expected = leaves(value), by_hand(value)
    assert [(name, id(tensor)) for name, tensor in found] == [
        (name, id(tensor)) for name, tensor in expected
    ]


@given(nested)
def test_replacing_twice_leads_back(value: Any) -> None:
    there = replace(value, lambda leaf, tensor: -tensor)
    back = replace(there, lambda leaf, tensor: -tensor)
    assert named(back) == named(value)
    assert type(back) is type(value)
