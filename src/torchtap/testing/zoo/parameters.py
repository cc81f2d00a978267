"""Parameters, buffers, names and hooks of modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from torchtap.testing.net import Net
from torchtap.testing.zoo.parts import a_then_b, detached, linear, rows, tokens, two
from torchtap.testing.zoo.specimen import Specimen, specimen


def _functional(m: Any, x: Tensor) -> Any:
    hidden = nn.functional.linear(x, m.weight, m.bias).relu_()
    return nn.functional.linear(hidden, m.weight)


def _counts(m: Any, x: Tensor) -> Any:
    m.count += 1
    with torch.no_grad():
        m.mean.lerp_(x.mean(0), 0.5)
    return (x - m.mean) * m.scale


def _tied(m: Any, tokens: Tensor) -> Any:
    return m.head(m.embedding(tokens).tanh())


def _tied_net() -> Net:
    net = Net(_tied, embedding=nn.Embedding(6, 3), head=nn.Linear(3, 6, bias=False))
    net.head.weight = net.embedding.weight
    return net


def specimens() -> list[Specimen]:
    """Parameters and buffers, then names of modules and hooks on them."""
    return [*_state(), *_names_and_hooks()]


def _state() -> list[Specimen]:
    return [
        specimen(
            "functional_only",
            lambda: Net(
                _functional,
                weight=nn.Parameter(torch.randn(3, 3)),
                bias=nn.Parameter(torch.randn(3)),
            ),
            rows,
            "no child is ever called; the parameters are the root's",
        ),
        specimen(
            "buffers_change",
            lambda: Net(
                _counts,
                scale=nn.Parameter(torch.randn(3)),
                mean=torch.zeros(3),
                count=torch.tensor(0),
            ),
            rows,
            "parameters and buffers of the root, the buffers change during the forward",
        ),
        specimen("tied_weights", _tied_net, tokens, "one parameter under two names"),
        specimen(
            "weight_norm",
            lambda: nn.Sequential(parametrizations.weight_norm(linear()), nn.Tanh(), linear()),
            rows,
            "the weight is made anew at every read, by modules that take parameters",
            silent=("0.parametrizations",),
        ),
        specimen(
            "spectral_norm",
            lambda: nn.Sequential(parametrizations.spectral_norm(linear()), nn.Tanh()),
            rows,
            "a parametrisation whose buffers change at every read",
            silent=("0.parametrizations",),
        ),
        specimen(
            "sparse_gradient",
            lambda: nn.Sequential(nn.Embedding(6, 3, sparse=True), linear()),
            tokens,
            "integers come in; the gradient of the embedding is sparse",
        ),
    ]


def _visits_all(m: Any, x: Tensor) -> Any:
    for part in m.parts.values():
        x = part(x)
    for part in m.list:
        x = part(x).sin()
    return x


def _odd_names() -> Net:
    names = ["a:output", "b[0]", "c@Linear", "d e", "*", "!f", "output", "grad_input", "ümlaut"]
    return Net(
        _visits_all,
        parts=nn.ModuleDict({name: linear() for name in names}),
        list=nn.ModuleList([linear(), linear()]),
    )


def _doubles_output(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


def _shifts_input(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return (args[0] + 1, *args[1:]), kwargs


def _with_foreign_hooks() -> Net:
    net = two(a_then_b)
    children = dict(net.named_children())
    children["a"].register_forward_hook(_doubles_output)
    children["b"].register_forward_pre_hook(_shifts_input, with_kwargs=True)
    return net


def _names_and_hooks() -> list[Specimen]:
    return [
        specimen(
            "never_called",
            lambda: Net(detached, a=linear(), b=linear(), spare=nn.Sequential(linear())),
            rows,
            "a module that never runs",
            silent=("spare", "spare.0"),
        ),
        specimen(
            "odd_names", _odd_names, rows, "names with ':', '[', '@', '*', '!' and spaces",
            silent=("parts", "list"),
        ),
        specimen(
            "foreign_hooks", _with_foreign_hooks, rows, "hooks of other code replace values"
        ),
    ]  # fmt: skip
