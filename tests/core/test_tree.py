"""Finding and replacing tensors in the arguments and outputs of a forward."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict, UserDict, UserList, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from containers import Box, OfRows
from hypothesis import given, strategies as st
from torch import Tensor
from torch.utils import _pytree
from transformers.modeling_outputs import BaseModelOutput

from torchtap.core.errors import EditError
from torchtap.core.rebuild import replace
from torchtap.core.tree import MOST_PARTS, argument_leaves, leaves

Point = namedtuple("Point", "x y")


@dataclass
class Loose:
    a: Any
    b: Any = None


@dataclass(frozen=True, slots=True)
class Tight:
    a: Any
    b: Any = None


class Registered:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts


_pytree.register_pytree_node(
    Registered, lambda node: (list(node.parts), None), lambda parts, _: Registered(*parts)
)


class Made(Registered):
    """Its children exist only while it is looked into."""


_pytree.register_pytree_node(
    Made, lambda node: ([list(node.parts[0])], None), lambda parts, _: Made(*parts)
)


class Slotted:
    __slots__ = ("a", "never")

    def __init__(self, a: Any) -> None:
        self.a = a


class Trap(Box):
    """Raises at every usual operation."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":  # isinstance asks.
            return Trap
        raise AssertionError(f"{name} was asked for")

    @property
    def derived(self) -> Any:
        raise AssertionError("a property ran")


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
    "deque": (deque([ONE, None, TWO], maxlen=3), {"0": 1, "2": 2}),
    "user list": (UserList([ONE, [TWO]]), {"0": 1, "1.0": 2}),
    "registered with pytree": (Registered(ONE, [TWO]), {"0": 1, "1.0": 2}),
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
    replace({"a": [ONE, TWO]}, lambda leaf, tensor: asked.append(leaf) or tensor)  # type: ignore[func-returns-value]
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


# --- objects ----------------------------------------------------------------------------------

OBJECTS = {
    "plain": (Box(ONE), {"held": 1}),
    "nested": (Box([Box(ONE), {"a": TWO}]), {"held.0.held": 1, "held.1.a": 2}),
    "slots, one never set": (Slotted(TWO), {"a": 2}),
    "namespace": (SimpleNamespace(a=ONE, b=3), {"a": 1}),
    "asks no code of the class": (object.__new__(Trap), {"held": 1}),
    "distribution": (torch.distributions.Normal(ONE, TWO), {"loc": 1, "scale": 2}),
}
object.__getattribute__(OBJECTS["asks no code of the class"][0], "__dict__")["held"] = ONE
every_object = pytest.mark.parametrize(
    ("value", "found"), list(OBJECTS.values()), ids=list(OBJECTS)
)


@every_object
def test_the_tensors_of_an_object_are_found_by_its_attributes(value: Any, found: Any) -> None:
    assert named(value) == found
    assert named((ONE, value)) == {"0": 1} | {f"1.{name}": one for name, one in found.items()}


@every_object
def test_a_tensor_of_an_object_is_not_replaced_without_a_word(value: Any, found: Any) -> None:
    with pytest.raises(EditError, match=r"attribute in a \w+, which torchtap neither copies"):
        replace((ONE, value), lambda leaf, tensor: tensor + 10)
    assert replace(value, lambda leaf, tensor: tensor) is value
    beside = replace((ONE, value), lambda leaf, tensor: tensor + 10 if leaf == "0" else tensor)
    assert beside[1] is value and beside[0].item() == 11
    assert named(value) == found


def test_objects_that_lead_to_themselves_are_walked_once() -> None:
    first, second = Box(None), Box(ONE)
    first.held, first.other, second.back = [second, second], second, first  # type: ignore[attr-defined]
    assert named(first) == {"held.0.held": 1}


def test_dataclass_attributes_beside_its_fields_are_found() -> None:
    value = Loose(ONE)
    value.late = TWO  # type: ignore[attr-defined]
    assert named(value) == {"a": 1, "late": 2}
    assert named(replace(value, lambda leaf, tensor: tensor + 1)) == {"a": 2, "late": 3}
    assert named(value) == {"a": 1, "late": 2}


NO_NAME = "which holds tensors that have no name in it"


def _keeps(tensor: Tensor) -> Any:
    return lambda: tensor


def _raised(error: Exception, tensor: Tensor) -> Exception:
    error.__cause__ = ValueError([tensor])
    return error


class _Named(str):
    """A text that keeps something."""

    held: Any


def _named_text() -> _Named:
    text = _Named("a")
    text.held = [ONE]
    return text


CLOSED = {
    "closure": (_keeps(ONE), f"a function, {NO_NAME}"),
    "method": (ONE.sin, f"a builtin_function_or_method, {NO_NAME}"),
    "partial": (functools.partial(max, key=[ONE]), f"a partial, {NO_NAME}"),
    "weak reference": (weakref.ref(ONE), f"a ReferenceType, {NO_NAME}"),
    "weak proxy": (weakref.proxy(ONE), "a weak proxy, which stands for"),
    "exception": (ValueError("a", (ONE,)), f"a ValueError, {NO_NAME}"),
    "cause of an exception": (_raised(KeyError(), ONE), f"a KeyError, {NO_NAME}"),
    "parameters": (torch.nn.ParameterList([ONE]), f"a ParameterList, {NO_NAME}"),
    "tensors in a set": ({(1, ONE)}, "a set, which has no order"),
    "values of a dict": ({"a": ONE}.values(), f"a dict_values, {NO_NAME}"),
    "set": ({ONE}, "a set, which has no order"),
    "frozenset": (frozenset([ONE]), "a frozenset, which has no order"),
    "generator": ((one for one in [ONE]), "a generator, which can be read only once"),
    "iterator": (iter([ONE]), "a list_iterator, which can be read only once"),
    "future": (torch.futures.Future(), "a Future, which shows no attributes"),
    "too large": (Box([Box(None) for _ in range(MOST_PARTS)]), "a Box, which holds more than"),
}


@pytest.mark.parametrize(("value", "why"), list(CLOSED.values()), ids=list(CLOSED))
def test_what_is_not_looked_into_is_reported(value: Any, why: str) -> None:
    for find in (leaves, lambda value, unseen: replace(value, lambda leaf, one: one, unseen)):
        unseen: dict[str, str] = {}
        find((ONE, {"a": value}), unseen)
        assert list(unseen) == ["1.a"] and unseen["1.a"].startswith(why)


class Items(dict[str, Any]):
    """Keeps something beside its items."""


class Row(list[Any]):
    """Likewise."""


@pytest.mark.parametrize("extra", [TWO, [TWO], _keeps(TWO)], ids=["tensor", "list", "closure"])
@pytest.mark.parametrize("kind", [lambda: Items(a=ONE), lambda: Row([ONE])], ids=["dict", "list"])
def test_tensors_beside_the_items_of_a_container_are_reported(
    kind: Callable[[], Any], extra: Any
) -> None:
    value = kind()
    value.same, value.extra = ONE, extra
    for find in (leaves, lambda value, unseen: replace(value, lambda leaf, one: one, unseen)):
        unseen: dict[str, str] = {}
        find({"h": value}, unseen)
        assert list(unseen) == ["h.extra"] and "attribute of a" in unseen["h.extra"]


def test_a_tensor_that_a_text_keeps_is_reported() -> None:
    unseen: dict[str, str] = {}
    leaves([_named_text()], unseen)
    assert list(unseen) == ["0.held"]


def test_a_proxy_of_what_is_gone_is_passed_over() -> None:
    gone = weakref.proxy(Box(ONE))
    assert leaves([gone, Box(gone)]) == [] and leaves(gone) == []


def test_an_array_of_objects_is_reported() -> None:
    unseen: dict[str, str] = {}
    array = np.empty(1, dtype=object)
    array[0] = ONE
    assert leaves((array, np.ones(2)), unseen) == []
    assert unseen == {"0": "a numpy array of objects, which is not looked into"}


QUIET = [set(), {"a"}, "text", torch.float32, torch.device("cpu"), print, named]
QUIET += [
    torch.nn.Linear(1, 1),
    Box,
    torch.Generator(),
    range(3),
    object(),
    torch.contiguous_format,
]


@pytest.mark.parametrize("value", QUIET, ids=lambda value: type(value).__name__)
def test_what_holds_no_tensors_is_not_mentioned(value: Any) -> None:
    unseen: dict[str, str] = {}
    assert leaves((value, Box(value)), unseen) == [] and unseen == {}


def _late(output: Any) -> Any:
    output["last_hidden_state"] = TWO
    return output


def _moved(output: Any) -> Any:
    OrderedDict.move_to_end(output, "last_hidden_state")
    return output


def _without(output: Any) -> Any:
    OrderedDict.__delitem__(output, "last_hidden_state")
    return output


def _unset(output: Any) -> Any:
    output.last_hidden_state = None  # The item stays.
    return output


OF_FIELDS = {
    "set later": lambda: _late(BaseModelOutput(hidden_states=(ONE,))),
    "moved": lambda: _moved(BaseModelOutput(TWO, (ONE,), (TWO, ONE))),
    "taken out": lambda: _without(BaseModelOutput(TWO, (ONE,))),
    "attribute set to None": lambda: _unset(BaseModelOutput(TWO, (ONE,))),
    "in order": lambda: BaseModelOutput(TWO, (ONE,)),
    "user dict": lambda: UserDict(b=ONE, a=TWO),
}


@pytest.mark.parametrize("kind", OF_FIELDS)
def test_an_output_made_anew_has_the_keys_and_attributes_of_the_original_in_its_order(
    kind: str,
) -> None:
    value = OF_FIELDS[kind]()
    new = replace(value, lambda leaf, tensor: tensor + 10)
    assert type(new) is type(value)
    assert list(new) == list(value)
    shift = {name: number + 10 for name, number in named(value).items()}
    assert list(named(new).items()) == list(shift.items())
    if kind != "user dict":
        assert named(new[0]) == {name: one + 10 for name, one in named(value[0]).items()}
        for name, held in vars(value).items():
            added = 10 if name in value else 0  # What is no item stays.
            expected = {leaf: number + added for leaf, number in named(held).items()}
            assert named(vars(new)[name]) == expected


def test_what_an_object_leads_to_is_found_where_it_stands_by_itself_too() -> None:
    held = [ONE]
    assert named((Box(held), held, held)) == {"0.held.0": 1, "1.0": 1, "2.0": 1}


def test_children_that_a_registration_makes_anew_are_all_found() -> None:
    value = [Box(Made([ONE])), Box(Made([TWO])), Box(Made([ONE]))]
    assert named(value) == {"0.held.0.0": 1, "1.held.0.0": 2, "2.held.0.0": 1}


def test_a_list_too_long_is_not_looked_through() -> None:
    class Long(list[Tensor]):
        def __iter__(self) -> Any:
            raise AssertionError("it was looked through")

    unseen: dict[str, str] = {}
    assert leaves(Box(Long([1] * (MOST_PARTS + 1))), unseen) == []  # type: ignore[list-item]
    assert unseen == {"": f"a Box, which holds more than {MOST_PARTS:,} parts"}


def test_a_mapping_that_refuses_another_part_says_so() -> None:
    with pytest.raises(EditError, match="The OfRows refuses another part: batch dimension"):
        replace(OfRows(a=torch.ones(2)), lambda leaf, tensor: tensor[:1])
