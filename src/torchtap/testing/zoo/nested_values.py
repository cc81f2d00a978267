"""Outputs that are nested values: tuples, dicts, dataclasses, objects of other classes."""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtap.testing.net import Net
from torchtap.testing.zoo.containers import Box, Bundle, Cache, OrderedOutput, Outcome, Pair
from torchtap.testing.zoo.parts import rows, two, wrapped
from torchtap.testing.zoo.specimen import Specimen, specimen


def _gives_tuple(m: Any, x: Tensor) -> Any:
    return m.a(x), m.b(x)


def _gives_nested_tuple(m: Any, x: Tensor) -> Any:
    return m.a(x), (m.b(x), [x.sin() * m.a.weight.sum()])


def _gives_dict(m: Any, x: Tensor) -> Any:
    return {"z": m.a(x), "a": {"deep": m.b(x), "count": 3}}


def _gives_pair(m: Any, x: Tensor) -> Any:
    return Pair(m.a(x), m.b(x))


def _gives_outcome(m: Any, x: Tensor) -> Any:
    return Outcome(m.a(x), (m.b(x), x))


def _gives_ordered_output(m: Any, x: Tensor) -> Any:
    return OrderedOutput(last_hidden_state=m.a(x), hidden_states=(x, m.b(x)))


def _gives_model_output(m: Any, x: Tensor) -> Any:
    # Imported late: transformers is heavy, and only this specimen needs it.
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=m.a(x), hidden_states=(x, m.b(x)))


def _gives_late_field(m: Any, x: Tensor) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    found = BaseModelOutput(hidden_states=(x, m.b(x)))
    found["last_hidden_state"] = m.a(x)
    return found


def _gives_box(m: Any, x: Tensor) -> Any:
    return m.a(x), Box(x.sin(), (m.b(x), x))


def _gives_bundle(m: Any, x: Tensor) -> Any:
    return Bundle(m.a(x), m.b(x))


def _gives_deque(m: Any, x: Tensor) -> Any:
    return deque([m.a(x), m.b(x)], maxlen=2)


def _takes_late_field(m: Any, x: Tensor) -> Any:
    found = m.inner(x)
    return m.last(found.last_hidden_state + found.hidden_states[1])


def _takes_box(m: Any, x: Tensor) -> Any:
    first, box = m.inner(x)
    return m.last(first), box


def _takes_bundle(m: Any, x: Tensor) -> Any:
    found = m.inner(x)
    return Bundle(m.last(found.first), found.second)


def _takes_deque(m: Any, x: Tensor) -> Any:
    first, second = m.inner(x)
    return m.last(first), second


def _remembers_in(m: Any, x: Tensor, cache: Cache, layer: int) -> Any:
    grown = cache.grown(layer, m.a(x))
    return m.b(x + grown.mean(0))


@torch.no_grad()
def _generates(m: Any, x: Tensor) -> Any:
    cache = Cache()
    for _ in range(2):
        x = m.second(m.first(x, cache, 0), cache=cache, layer=1)
    return x, cache


def _gives_nones(m: Any, x: Tensor, mask: Tensor | None = None, **rest: Any) -> Any:
    return m.a(x), None, {"none": None, "b": m.b(x)}


def _gives_atoms(m: Any, x: Tensor) -> Any:
    return m.a(x), 3, "text", 2.5, True, m.b(x).argmax(-1), m.b(x) > 0


def _gives_text(m: Any, x: Tensor) -> Any:
    return f"{tuple(x.shape)}"


def _multiplies_first_two(m: Any, x: Tensor) -> Any:
    first, second = m.inner(x)
    return m.last(first * second), second


def _takes_nested_tuple(m: Any, x: Tensor) -> Any:
    first, (second, (third,)) = m.inner(x)
    return m.last(first * second), (third,)


def _takes_dict(m: Any, x: Tensor) -> Any:
    found = m.inner(x)
    return {"sum": m.last(found["z"] + found["a"]["deep"]), "found": found}


def _takes_outcome(m: Any, x: Tensor) -> Any:
    found = m.inner(x)
    return Outcome(m.last(found.hidden + found.pair[0]), found.pair)


def _takes_output(m: Any, x: Tensor) -> Any:
    found = m.inner(x)
    return type(found)(last_hidden_state=m.last(found[0] + found.hidden_states[1]))


def _passes_nones(m: Any, x: Tensor, mask: Tensor | None = None) -> Any:
    first, nothing, rest = m.inner(x, mask=None, extra=[None, x], more=mask)
    return m.last(first), nothing, rest


def _returns_inner(m: Any, x: Tensor) -> Any:
    return m.inner(x)


def _reports_text(m: Any, x: Tensor) -> Any:
    return m.last(x * len(m.inner(x)))


_INNER = ("inner.a", "inner.b")


def _made(
    name: str,
    inner: Callable[..., Any],
    outer: Callable[..., Any],
    trap: str,
    **marks: Any,
) -> Specimen:
    return specimen(name, lambda: wrapped(inner, outer), rows, trap, **marks)


def specimens() -> list[Specimen]:
    found = [
        _made("tuple_output", _gives_tuple, _multiplies_first_two, "two tensors in a tuple"),
        _made("nested_tuple_output", _gives_nested_tuple, _takes_nested_tuple, "tuples in tuples"),
        _made("dict_output", _gives_dict, _takes_dict, "a nested dict, keys not in sorted order"),
        _made("namedtuple_output", _gives_pair, _multiplies_first_two, "a named tuple"),
        _made(
            "dataclass_output", _gives_outcome, _takes_outcome, "a dataclass that holds an input"
        ),
        _made("model_output", _gives_ordered_output, _takes_output, "a ModelOutput look-alike"),
        _made("none_leaves", _gives_nones, _passes_nones, "None among inputs and outputs"),
        _made(
            "mixed_leaves", _gives_atoms, _returns_inner, "numbers, text and integer tensors",
            silent=("last",),
        ),
        _made("no_tensor_output", _gives_text, _reports_text, "text comes out", silent=_INNER),
    ]  # fmt: skip
    found += [
        _made("object_beside_a_tensor", _gives_box, _takes_box, "tensors in a plain object"),
        _made("registered_output", _gives_bundle, _takes_bundle, "a node of torch.utils._pytree"),
        _made("deque_output", _gives_deque, _takes_deque, "tensors in a deque"),
        specimen(
            "cache_through_layers",
            lambda: Net(_generates, first=two(_remembers_in), second=two(_remembers_in)),
            rows,
            "one object goes into every layer, which put tensors in it",
            backward=False,
        ),
    ]
    if importlib.util.find_spec("transformers") is not None:
        trap = "a ModelOutput whose copy has its fields in another order"
        found.append(_made("transformers_late_field", _gives_late_field, _takes_late_field, trap))
        trap = "the ModelOutput of transformers"
        found.append(_made("transformers_output", _gives_model_output, _takes_output, trap))
    return found
