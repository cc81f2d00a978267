"""Modules and callers that overwrite what they are given or what was returned."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from torchtap.testing.net import Net
from torchtap.testing.zoo.parts import given, image, linear, normal, rows, two
from torchtap.testing.zoo.specimen import Specimen, specimen


def _residual_block(m: Any, x: Tensor) -> Any:
    out = m.relu(m.bn1(m.conv1(x)))
    out = m.bn2(m.conv2(out))
    out += x
    return m.relu(out)


def _block() -> Net:
    return Net(
        _residual_block,
        conv1=nn.Conv2d(4, 4, 3, padding=1, bias=False),
        bn1=nn.BatchNorm2d(4),
        relu=nn.ReLU(inplace=True),
        conv2=nn.Conv2d(4, 4, 3, padding=1, bias=False),
        bn2=nn.BatchNorm2d(4),
    )


def specimens() -> list[Specimen]:
    """Modules that write into their input, then callers that write, or let a module write."""
    return [*_modules_write(), *_callers_write()]


def _modules_write() -> list[Specimen]:
    return [
        specimen(
            "in_place_residual",
            lambda: nn.Sequential(_block(), _block(), nn.Flatten(), nn.Linear(100, 2)),
            image,
            "BatchNorm, in-place ReLU used twice, out += identity",
        ),
        specimen(
            "in_place_residual_eval",
            lambda: nn.Sequential(_block(), _block()).eval(),
            lambda: given(normal(2, 4, 5, 5, grad=True)),
            "the same in eval mode, with a gradient for the input",
        ),
        specimen(
            "in_place_first",
            lambda: nn.Sequential(nn.ReLU(inplace=True), linear()),
            rows,
            "the first module overwrites the caller's input",
        ),
        specimen(
            "in_place_chain",
            lambda: nn.Sequential(
                linear(), nn.ReLU6(inplace=True), nn.Hardtanh(-0.5, 0.5, inplace=True), linear()
            ),
            rows,
            "one tensor overwritten twice",
        ),
        specimen(
            "in_place_dropout",
            lambda: nn.Sequential(linear(), nn.Dropout(0.5, inplace=True), linear()),
            rows,
            "in-place Dropout while training",
            random=True,
        ),
        specimen(
            "filled_late",
            lambda: nn.Sequential(linear(), nn.RReLU(0.1, 0.9), linear()),
            rows,
            "autograd saves the noise before the kernel writes it",
            random=True,
        ),
        specimen(
            "filled_late_in_place",
            lambda: nn.Sequential(linear(), nn.RReLU(0.1, 0.9, inplace=True)),
            rows,
            "the same, with the last tensor that is saved",
            random=True,
        ),
    ]


def _caller_adds(m: Any, x: Tensor) -> Any:
    out = m.a(x)
    out += 1
    out.mul_(2)
    out[0] = 0
    return m.b(out)


def _relu_for_effect(m: Any, x: Tensor) -> Any:
    hidden = m.a(x)
    m.relu(hidden)
    return m.b(hidden)


def _relu_on_a_view(m: Any, x: Tensor) -> Any:
    hidden = m.a(x)
    m.relu(hidden[:, :2])
    return m.b(hidden)


def _changes_view_input(m: Any, x: Tensor) -> Any:
    x.mul_(3).sin_()
    return m.a(x)


def _passes_view(m: Any, x: Tensor) -> Any:
    return m.inner(m.last(x).view(3, 2).t()[:, :])


def _callers_write() -> list[Specimen]:
    return [
        specimen("caller_changes_output", lambda: two(_caller_adds), rows, "out += 1; out[0] = 0"),
        specimen(
            "relu_for_effect",
            lambda: Net(_relu_for_effect, a=linear(), relu=nn.ReLU(inplace=True), b=linear()),
            rows,
            "the result of an in-place module is dropped",
        ),
        specimen(
            "relu_on_a_view",
            lambda: Net(_relu_on_a_view, a=linear(), relu=nn.ReLU(inplace=True), b=linear()),
            rows,
            "an in-place module changes half of a tensor through a view",
        ),
        specimen(
            "view_input_changed",
            lambda: Net(_passes_view, inner=Net(_changes_view_input, a=linear()), last=linear()),
            lambda: given(normal(2, 3, grad=True)),
            "a module changes its own input, a view",
        ),
    ]
