"""One tensor in several places: as several arguments, or returned as it was given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtap.testing.net import Net
from torchtap.testing.zoo.parts import given, linear, normal, rows, rows_with_grad, sequence, two
from torchtap.testing.zoo.specimen import Specimen, specimen


def _product(m: Any, first: Tensor, second: Tensor) -> Any:
    return m.a(first) * second


def _squares(m: Any, x: Tensor) -> Any:
    hidden = m.last(x)
    return m.inner(hidden, hidden)


def _attends_to_itself(m: Any, x: Tensor) -> Any:
    hidden = m.norm(x)
    return m.attention(hidden, hidden, hidden, need_weights=False)[0] + x


def _attends_across(m: Any, x: Tensor, memory: Tensor) -> Any:
    memory = m.norm(memory)
    return m.attention(x, memory, memory)


def specimens() -> list[Specimen]:
    """One tensor as several arguments, then one that is used beside the module it went through."""
    return [*_given_twice(), *_used_again()]


def _given_twice() -> list[Specimen]:
    return [
        specimen(
            "same_tensor_twice",
            lambda: Net(_squares, inner=Net(_product, a=linear()), last=linear()),
            rows,
            "f(x, x)",
        ),
        specimen(
            "self_attention",
            lambda: Net(
                _attends_to_itself,
                norm=nn.LayerNorm(8),
                attention=nn.MultiheadAttention(8, 2, batch_first=True),
            ),
            sequence,
            "query is key is value: replacing them takes another path",
            silent=("attention.out_proj",),
        ),
        specimen(
            "cross_attention",
            lambda: Net(
                _attends_across,
                norm=nn.LayerNorm(8),
                attention=nn.MultiheadAttention(8, 2, batch_first=True),
            ),
            lambda: given(normal(2, 5, 8, grad=True), normal(2, 4, 8, seed=1)),
            "key is value, query is not",
            silent=("attention.out_proj",),
        ),
    ]


def _keeps_identity(m: Any, x: Tensor) -> Any:
    hidden = m.a(x)
    return m.b(m.same(hidden).sin()) * hidden


def _uses_and_returns(m: Any, x: Tensor, bias: Tensor) -> Any:
    return m.a(x) * bias, bias


def _hands_bias_on(m: Any, x: Tensor) -> Any:
    bias = x.new_ones(3) * m.bias
    x, bias = m.first(x, bias)
    x, bias = m.second(x, bias)
    return x


def _logits_and_loss(m: Any, x: Tensor) -> Any:
    logits = m.a(x)
    return logits, logits.log_softmax(-1)[:, 0].mean(), m.b(logits)


def _gives_twice(m: Any, x: Tensor) -> Any:
    out = m.a(x)
    return out, out


def _takes_both(m: Any, x: Tensor) -> Any:
    first, second = m.inner(x)
    return m.last(first) * second


def _used_again() -> list[Specimen]:
    return [
        specimen(
            "identity",
            lambda: Net(_keeps_identity, a=linear(), same=nn.Identity(), b=linear()),
            rows,
            "returns its input, which is used beside it too",
        ),
        specimen(
            "dropout_eval",
            lambda: nn.Sequential(
                linear(), nn.Dropout(0.5), nn.Identity(), nn.ReLU(inplace=True), linear()
            ).eval(),
            rows_with_grad,
            "two modules that return their input, then one that overwrites it",
        ),
        specimen(
            "uses_and_returns_input",
            lambda: Net(
                _hands_bias_on,
                first=Net(_uses_and_returns, a=linear()),
                second=Net(_uses_and_returns, a=linear()),
                bias=nn.Parameter(torch.randn(3)),
            ),
            rows,
            "a bias used by each block and handed on unchanged: it must not count twice",
        ),
        specimen(
            "output_used_inside",
            lambda: two(_logits_and_loss),
            rows,
            "logits beside a loss computed from them",
        ),
        specimen(
            "same_output_twice",
            lambda: Net(_takes_both, inner=Net(_gives_twice, a=linear()), last=linear()),
            rows,
            "one tensor in two slots of the result",
        ),
    ]
