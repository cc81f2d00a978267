"""One module, several calls: shared, recurrent, in branches, recursive."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtap.testing.net import Net
from torchtap.testing.zoo.parts import a_then_b, given, linear, normal, rows, rows_with_grad
from torchtap.testing.zoo.specimen import Specimen, specimen


def _called_twice(m: Any, x: Tensor) -> Any:
    return m.a(m.a(x).tanh())


def _unrolled(m: Any, x: Tensor) -> Any:
    hidden = x.new_zeros(x.shape[0], 3)
    states = []
    for step in range(4):
        hidden = m.cell(x[:, step], hidden)
        states.append(hidden)
    return m.head(torch.stack(states, 1)), hidden


def _two_branches(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        m.a(x)
    return m.a(x) * 2, m.a(x.cos()).tanh()


def _recursive(m: Any, x: Tensor, depth: int = 2) -> Any:
    return m.a(x) if depth == 0 else m(m.a(x).tanh(), depth - 1) + x


def _shared_under_two_names() -> Net:
    shared = linear()
    return Net(a_then_b, a=shared, b=shared)


def specimens() -> list[Specimen]:
    return [
        specimen("shared_module", _shared_under_two_names, rows, "one module under two names"),
        specimen(
            "module_called_twice",
            lambda: Net(_called_twice, a=linear()),
            rows,
            "the second call feeds on the first",
        ),
        specimen(
            "recurrent_loop",
            lambda: Net(_unrolled, cell=nn.GRUCell(3, 3), head=linear()),
            lambda: given(normal(2, 4, 3)),
            "a cell called four times",
        ),
        specimen(
            "two_branches",
            lambda: Net(_two_branches, a=linear()),
            rows,
            "calls whose gradients arrive first in, first out, and one without",
        ),
        specimen(
            "recursive_module",
            lambda: Net(_recursive, a=linear()),
            rows_with_grad,
            "a module that calls itself: calls nest",
        ),
    ]
