"""Parts without a gradient: grad modes, detached, frozen or unused parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtap.testing.net import Net
from torchtap.testing.zoo.parts import detached, given, halves, linear, normal, rows, two
from torchtap.testing.zoo.specimen import Specimen, specimen


def _no_grad_branch(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        gate = m.a(x).sigmoid_()
    return m.b(x) * gate


def _inference_branch(m: Any, x: Tensor) -> Any:
    with torch.inference_mode():
        gate = m.a(x).sigmoid_()
    return m.b(x) * gate.clone()


def _all_inference(m: Any, x: Tensor) -> Any:
    with torch.inference_mode():
        return m.b(m.a(x).relu_())


def _grad_inside_no_grad(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        gate = m.a(x)
        with torch.enable_grad():
            out = m.b(gate)
    return out * gate


def specimens() -> list[Specimen]:
    """Grad modes, then parts that the loss does not depend on, or not through their arguments."""
    return [*_modes(), *_without_gradient()]


def _modes() -> list[Specimen]:
    return [
        specimen("no_grad_branch", lambda: two(_no_grad_branch), rows, "a under no_grad"),
        specimen(
            "inference_branch", lambda: two(_inference_branch), rows, "a under inference_mode"
        ),
        specimen(
            "inference_mode",
            lambda: two(_all_inference),
            rows,
            "inference tensors have no version and cannot be saved",
            backward=False,
        ),
        specimen(
            "grad_inside_no_grad",
            lambda: two(_grad_inside_no_grad),
            rows,
            "enable_grad below no_grad",
        ),
    ]


def _uses_first_half(m: Any, x: Tensor) -> Any:
    first, _ = m.halves(m.a(x))
    return first.exp()


def _rows_apart(m: Any, x: Tensor) -> Any:
    return x.unbind(0)


def _uses_middle_row(m: Any, x: Tensor) -> Any:
    return m.b(m.rows(m.a(x))[1])


def _ignores_argument(m: Any, x: Tensor, unused: Tensor) -> Any:
    return m.a(x)


def _gives_too_much(m: Any, x: Tensor) -> Any:
    hidden = m.last(x)
    m.unused(hidden)
    return m.inner(hidden, hidden.cos())


def _remembers(m: Any, x: Tensor) -> Any:
    return m.a(x) * m.kept[0] + m.kept[1]


def _reminds(m: Any, x: Tensor) -> Any:
    hidden = m.last(x)
    m.inner.kept.extend([m.first(x).tanh(), hidden.sin()])
    out = m.inner(hidden)
    m.inner.kept.clear()
    return out


def _with_memory() -> Net:
    inner = Net(_remembers, a=linear())
    inner.kept = []  # type: ignore[assignment]  # A plain list, as models do keep them.
    return Net(_reminds, first=linear(), last=linear(), inner=inner)


def _frozen_start() -> nn.Module:
    model = nn.Sequential(linear(), nn.Tanh(), linear())
    model[0].requires_grad_(False)
    return model


def _without_gradient() -> list[Specimen]:
    return [
        specimen("detached", lambda: two(detached), rows, "no gradient reaches a"),
        specimen("frozen_start", _frozen_start, rows, "the first parameters are frozen"),
        specimen(
            "nothing_requires_grad",
            lambda: nn.Sequential(linear(), nn.ReLU()).requires_grad_(False),
            rows,
            "no gradient anywhere",
            backward=False,
        ),
        specimen(
            "unused_half",
            lambda: Net(_uses_first_half, a=nn.Linear(3, 4), halves=Net(halves)),
            rows,
            "one output of a chunk is not used by the loss",
        ),
        specimen(
            "unused_rows",
            lambda: Net(_uses_middle_row, a=linear(), rows=Net(_rows_apart), b=linear()),
            lambda: given(normal(4, 3)),
            "three of four outputs of an unbind are not used by the loss",
        ),
        specimen(
            "unused_argument",
            lambda: Net(
                _gives_too_much,
                inner=Net(_ignores_argument, a=linear()),
                last=linear(),
                unused=linear(),
            ),
            rows,
            "an argument and a whole module that the loss does not depend on",
        ),
        specimen(
            "keeps_earlier_activation",
            _with_memory,
            rows,
            "a module reaches its input's source past its arguments",
        ),
    ]
