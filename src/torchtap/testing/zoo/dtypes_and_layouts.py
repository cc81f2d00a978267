"""Dtypes, memory layouts, sizes and values out of the ordinary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtap.testing.net import Net
from torchtap.testing.zoo.parts import given, linear, normal, rows, two
from torchtap.testing.zoo.specimen import Specimen, specimen


def _autocast(m: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = m.b(m.a(x))
    return hidden.float().sin()


def _complex_power(m: Any, x: Tensor) -> Any:
    return m.b(torch.view_as_complex(m.a(x).view(-1, 3, 2)) * m.phase)


def specimens() -> list[Specimen]:
    """Dtypes, then layouts, sizes and values."""
    return [*_dtypes(), *_layouts()]


def _dtypes() -> list[Specimen]:
    return [
        specimen(
            "bfloat16",
            lambda: nn.Sequential(linear(), nn.LayerNorm(3), nn.GELU(), linear()).bfloat16(),
            lambda: given(normal(2, 3, dtype=torch.bfloat16)),
            "everything in bfloat16",
            double=False,
        ),
        specimen("autocast", lambda: two(_autocast), rows, "an autocast region", double=False),
        specimen(
            "float64", lambda: nn.Sequential(linear(), nn.Tanh()).double(),
            lambda: given(normal(2, 3, dtype=torch.float64, grad=True)), "everything in float64",
        ),
        specimen(
            "complex",
            lambda: Net(
                _complex_power,
                a=nn.Linear(3, 6),
                b=nn.Linear(3, 2, dtype=torch.complex64),
                phase=nn.Parameter(torch.randn(3, dtype=torch.complex64)),
            ),
            rows,
            "complex parameters, activations and gradients",
        ),
    ]  # fmt: skip


def _strides(m: Any, x: Tensor) -> Any:
    apart = torch.cat((x, x), dim=1)[:, ::2]
    return m.a(x.t().contiguous().t()) + m.b(apart.flip(0)) + m.c(x[:1].expand(2, 3))


def _expands(m: Any, x: Tensor) -> Any:
    return m.b(m.wide(m.a(x[:1])))


def _expand_rows(m: Any, x: Tensor) -> Any:
    return x.expand(4, 3)


def _scalars(m: Any, x: Tensor) -> Any:
    return m.scale(m.a(x).sum())


def _square(m: Any, x: Tensor) -> Any:
    return x * x


def _logarithm(m: Any, x: Tensor) -> Any:
    return m.log(m.relu(m.a(x)))


def _log(m: Any, x: Tensor) -> Any:
    return x.log()


def _layouts() -> list[Specimen]:
    return [
        specimen(
            "channels_last",
            lambda: nn.Sequential(
                nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)
            ).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
            lambda: given(normal(2, 4, 5, 5).to(memory_format=torch.channels_last)),
            "the memory format must survive",
        ),
        specimen(
            "strides",
            lambda: Net(_strides, a=linear(), b=linear(), c=linear()),
            lambda: given(normal(2, 3, grad=True)),
            "transposed, strided and expanded inputs of children",
        ),
        specimen(
            "expanded_input",
            lambda: nn.Sequential(linear(), nn.Tanh()),
            lambda: given(normal(1, 3).expand(4, 3)),
            "one row seen four times",
        ),
        specimen(
            "expanded_output",
            lambda: Net(_expands, a=linear(), wide=Net(_expand_rows), b=linear()),
            rows,
            "a child returns one row four times: its gradient is dense, the value is not",
        ),
        specimen(
            "zero_dim", lambda: Net(_scalars, a=linear(), scale=Net(_square)), rows, "0-d tensors"
        ),
        specimen(
            "empty_batch",
            lambda: nn.Sequential(linear(), nn.LayerNorm(3), nn.ReLU(), linear()),
            lambda: given(normal(0, 3, grad=True)),
            "no rows at all",
        ),
        specimen(
            "nonfinite",
            lambda: Net(_logarithm, a=linear(), relu=nn.ReLU(), log=Net(_log)),
            rows,
            "-inf forward, inf and nan backward",
        ),
    ]
