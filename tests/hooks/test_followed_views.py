"""Gradients of views whose memory is overwritten are right, or absent with a reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from absent import reasons, reasons_at
from models import seeded
from random_numbers import leaf
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net


def as_square(h: Tensor) -> Tensor:
    return h.view(2, 2)


def test_a_view_of_a_base_that_was_overwritten_itself_is_absent() -> None:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        h = x * 2
        v = net.v(h)
        h.mul_(3)
        v.add_(1)
        return v.square().sum()

    model = Net(forward, v=Net(lambda net, h: as_square(h)))
    with tt.watch(model, "v:grad_output") as w:
        model(torch.arange(4.0, requires_grad=True)).backward()
    assert not w.run.sites
    assert reasons_at(w, "v:grad_output")


def test_a_view_that_was_overwritten_says_that_its_memory_is_shared() -> None:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        v = net.v(x * 2)
        v += 1
        return v.square().sum()

    model = Net(forward, v=Net(lambda net, h: as_square(h)))
    x = torch.arange(4.0, requires_grad=True)
    with tt.watch(model, "v:grad_output") as w:
        model(x).backward()
    record = w.run.record("v:grad_output")
    assert record.labels == ("shared memory",)
    assert torch.equal(record.value, (2 * (as_square(x.detach()) * 2 + 1)))


def test_a_complex_argument_overwritten_through_its_real_view_is_absent() -> None:
    def inner(net: nn.Module, v: Tensor) -> Any:
        v.mul_(2)
        return v.sum()

    def forward(net: nn.Module, x: Tensor) -> Tensor:
        return net.i(torch.view_as_real(x * 1))

    model = Net(forward, i=Net(inner))
    with tt.watch(model, "i:*") as w:
        model(torch.ones(3, dtype=torch.complex64, requires_grad=True)).backward()
    assert reasons_at(w, "i:grad_input") == [
        "it is a view in another dtype, and the module overwrote it"
    ]


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.flatten(),
        lambda x: x.transpose(0, 1),
        lambda x: x[:, :1],
        lambda x: x[1:3],
        lambda x: x.transpose(0, 1)[1:],
    ],
    ids=["flatten", "transpose", "columns", "rows", "rows of transpose"],
)
def test_the_gradient_of_a_view_survives_a_write_into_it(view: Any) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.view(2 * x)
        before = (5 * y).sum()  # A use before the write, and one after it.
        y.mul_(3)
        return before + (y * y).sum()

    model, x = Net(forward, view=Net(lambda m, x: view(x))), leaf(4, 2)
    with tt.watch(model, "view:output,grad_output") as w:
        model(x).backward()
    value = view(2 * x.detach())
    assert torch.equal(w.run["view:output"], value)
    torch.testing.assert_close(w.run["view:grad_output"], 5 + 18 * value)


def test_a_write_through_the_input_view_is_followed() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = 2 * x
        m.doubles(y[:1])
        return (y * y).sum()

    model, x = Net(forward, doubles=Net(lambda m, x: x.mul_(2))), leaf(2, 2)
    with tt.watch(model, "doubles:*") as w:
        model(x).backward()
    assert torch.equal(w.run["doubles:input"], 2 * x[:1])
    assert torch.equal(w.run["doubles:output"], 4 * x[:1])
    assert "no gradient arrived" in reasons(w)["doubles:grad_output"]  # It was thrown away.
    torch.testing.assert_close(w.run["doubles:grad_input"], 16 * x.detach()[:1])


class FirstTwo(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2]


class Writes(nn.Module):
    """Writes into a returned view, marks it, and writes again: through the view or the base."""

    def __init__(self, *, through_view: bool) -> None:
        super().__init__()
        self.through_view = through_view
        self.linear = nn.Linear(3, 4)
        self.cut = FirstTwo()

    def forward(self, x: Tensor) -> Tensor:
        base = self.linear(x).clone()
        view = self.cut(base)
        view.mul_(3.0)
        tt.mark(view, "between")
        (view if self.through_view else base).mul_(5.0)
        return (view * view).sum() + base.sum()


@pytest.mark.parametrize("through_view", [True, False])
def test_a_mark_between_two_writes_keeps_the_gradient_before_both(through_view: bool) -> None:
    model = seeded(lambda: Writes(through_view=through_view))
    x = torch.ones(2, 3)
    with tt.watch(model, ["cut:grad_output", "between"]) as w:
        model(x).backward()
    base = model.linear(x).detach()
    returned = base[:, :2].requires_grad_()
    rest = base[:, 2:] if through_view else 5 * base[:, 2:]
    view = 15 * returned
    loss = (view * view).sum() + torch.cat([view, rest], 1).sum()
    (expected,) = torch.autograd.grad(loss, returned)
    assert torch.allclose(w.run["cut:grad_output"], expected)
