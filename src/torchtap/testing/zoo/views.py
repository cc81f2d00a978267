"""Views that are written to, and views whose base is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from torchtap.testing.net import Net
from torchtap.testing.zoo.parts import given, halves, image, linear, normal, rows
from torchtap.testing.zoo.specimen import Specimen, specimen


def _transposes(m: Any, x: Tensor) -> Any:
    return x.transpose(0, 1)


def _first_columns(m: Any, x: Tensor) -> Any:
    return x[:, :2]


def _writes_transposed(m: Any, x: Tensor) -> Any:
    out = m.view(m.a(x))
    out += 1
    out.mul_(out.detach().cos())
    return m.b(out.t())


def _writes_columns(m: Any, x: Tensor) -> Any:
    out = m.view(m.a(x))
    out.mul_(3)
    return out.sin()


def _writes_columns_reads_base(m: Any, x: Tensor) -> Any:
    hidden = m.a(x)
    out = m.view(hidden)
    out.mul_(3)
    return m.b(hidden) + out.sum()


def _writes_base_reads_columns(m: Any, x: Tensor) -> Any:
    hidden = m.a(x)
    out = m.view(hidden)
    hidden.mul_(3)
    return m.b(hidden) + out.sum()


def _writes_flat(m: Any, x: Tensor) -> Any:
    out = m.flatten(m.conv(x))
    out += 1
    out[:, 0] = 0
    return m.fc(out)


def _writes_without_grad(m: Any, x: Tensor) -> Any:
    out = m.view(x)
    first, second = out
    first.add_(1)
    second.mul_(first)
    return m.a(second)


def specimens() -> list[Specimen]:
    def viewing(body: Callable[..., Any], view: Callable[..., Any]) -> Callable[[], Net]:
        return lambda: Net(body, a=linear(), view=Net(view), b=linear())

    return [
        specimen(
            "flatten_changed",
            lambda: Net(
                _writes_flat, conv=nn.Conv2d(4, 2, 3), flatten=nn.Flatten(), fc=nn.Linear(18, 2)
            ),
            image,
            "the caller writes into what Flatten returned",
        ),
        specimen(
            "transpose_changed",
            viewing(_writes_transposed, _transposes),
            rows,
            "the caller writes twice into a transposed view",
        ),
        specimen(
            "slice_changed",
            viewing(_writes_columns, _first_columns),
            rows,
            "the caller writes into a slice; the rest of the base gets no gradient",
            silent=("b",),
        ),
        specimen(
            "slice_changed_base_used",
            viewing(_writes_columns_reads_base, _first_columns),
            rows,
            "the caller writes into a slice and goes on with the base",
            twin=False,
        ),
        specimen(
            "base_changed_slice_used",
            viewing(_writes_base_reads_columns, _first_columns),
            rows,
            "the caller writes into the base and goes on with the slice",
            twin=False,
        ),
        specimen(
            "chunks_changed",
            lambda: Net(_writes_without_grad, a=nn.Linear(2, 2), view=Net(halves)),
            lambda: given(normal(2, 4)),
            "the caller writes into both halves of a chunked input",
        ),
    ]
