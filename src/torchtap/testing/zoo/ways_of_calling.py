"""Ways to call a module: positions, keywords, lists, nothing, parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtap.testing.net import Net
from torchtap.testing.zoo.parts import given, linear, normal, rows, rows_with_grad, two, wrapped
from torchtap.testing.zoo.specimen import Specimen, specimen


def _keywords_only(m: Any, *, x: Tensor, scale: Tensor) -> Any:
    return m.a(input=x) * scale + m.b(x)


def _calls_by_keyword(m: Any, *, x: Tensor, scale: Tensor) -> Any:
    return m.last(m.inner(scale=scale, x=x))


def _mixed_arguments(m: Any, x: Tensor, y: Tensor, flag: bool, *, z: dict[str, Tensor]) -> Any:
    return m.a(x) * y + m.b(z["deep"]) * flag


def _sums_list(m: Any, items: list[Tensor]) -> Any:
    return m.a(items[0]) + m.b(items[1])


def _calls_with_list(m: Any, items: list[Tensor]) -> Any:
    first = m.last(items[1])
    return m.inner([first, items[0]])


def _no_arguments(m: Any) -> Any:
    return m.weight.sin()


def _calls_without_arguments(m: Any, x: Tensor) -> Any:
    return m.a(x) * m.prompt()


def specimens() -> list[Specimen]:
    """Return ways to call a module, and what its parameters do among arguments and results."""
    return [*_ways_to_call(), *_leaves_of_the_graph()]


def _ways_to_call() -> list[Specimen]:
    return [
        specimen(
            "keywords_only",
            lambda: wrapped(_keywords_only, _calls_by_keyword),
            lambda: given(x=normal(2, 3), scale=normal(3, seed=1, grad=True)),
            "nothing positional; the order differs from call to call",
        ),
        specimen(
            "mixed_arguments",
            lambda: two(_mixed_arguments),
            lambda: given(
                normal(2, 3, grad=True),
                normal(3, seed=1),
                True,
                z={"deep": normal(2, 3, seed=2, grad=True)},
            ),
            "positions, a flag, and a dict by keyword",
        ),
        specimen(
            "list_input",
            lambda: wrapped(_sums_list, _calls_with_list),
            lambda: given([normal(2, 3, grad=True), normal(2, 3, seed=1)]),
            "the one argument is a list",
        ),
        specimen(
            "no_arguments",
            lambda: Net(
                _calls_without_arguments, a=linear(), prompt=Net(_no_arguments, weight=_parameter())
            ),
            rows,
            "a child that takes nothing",
        ),
    ]


def _parameter() -> nn.Parameter:
    return nn.Parameter(torch.randn(3))


def _returns_parameter(m: Any) -> Any:
    return m.weight


def _row_of_parameter(m: Any) -> Any:
    return m.weight[:1]


def _parameter_as_input(m: Any, x: Tensor) -> Any:
    return m.a(m.weight).sum(0) * m.b(x) + m.a(m.weight * 2).sum(0)


def _leaf_used_outside(m: Any, x: Tensor) -> Any:
    return m.a(x) * x + m.b(x.detach())


def _leaves_of_the_graph() -> list[Specimen]:
    return [
        specimen(
            "parameter_as_output",
            lambda: Net(
                _calls_without_arguments,
                a=linear(),
                prompt=Net(_returns_parameter, weight=_parameter()),
            ),
            rows,
            "a child that returns its own parameter: a leaf that outlives the step",
        ),
        specimen(
            "view_of_parameter_as_output",
            lambda: Net(
                _calls_without_arguments,
                a=linear(),
                prompt=Net(_row_of_parameter, weight=nn.Parameter(torch.randn(2, 3))),
            ),
            rows,
            "a child that returns a view of its own parameter",
        ),
        specimen(
            "parameter_as_input",
            lambda: Net(
                _parameter_as_input,
                a=linear(),
                b=linear(),
                weight=nn.Parameter(torch.randn(4, 3)),
            ),
            rows,
            "a parameter handed to a child: hooks on it would pile up from step to step",
        ),
        specimen(
            "leaf_used_outside",
            lambda: two(_leaf_used_outside),
            rows_with_grad,
            "the input is used by a child and beside it",
        ),
    ]
