"""``tt.edits.guided_relu`` against guided backpropagation written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from edited import INF, close
from models import seeded
from random_numbers import normal
from torch import Tensor, nn
from torch.nn import functional as F

import torchtap as tt
from torchtap import edits
from torchtap.testing import Net


class _Guided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, top: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.top = top
        return x.clamp(0, top)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient.clamp(min=0) * ((x > 0) & (x < ctx.top)), None


RECTIFIERS: dict[str, tuple[Any, float]] = {
    "ReLU": (nn.ReLU(), INF),
    "in-place ReLU": (nn.ReLU(inplace=True), INF),
    "ReLU6": (nn.ReLU6(), 6.0),
    "in-place ReLU6": (nn.ReLU6(inplace=True), 6.0),
    "functional": (Net(lambda m, x: F.relu(x)), INF),
    "functional in place": (Net(lambda m, x: F.relu(x, inplace=True)), INF),
    "clamp": (Net(lambda m, x: x.clamp(min=0)), INF),
    "method": (Net(lambda m, x: x.relu_()), INF),
    "threshold": (nn.Threshold(0.0, 0.0), INF),
    "in-place threshold": (nn.Threshold(0.0, 0.0, inplace=True), INF),
    "clamp by a tensor": (Net(lambda m, x: x.clamp(min=x.new_zeros(()))), INF),
    "clamp by a tensor in place": (Net(lambda m, x: x.clamp_(min=x.new_zeros(()))), INF),
    "clamp_min by a tensor": (Net(lambda m, x: torch.clamp_min(x, x.new_zeros(()))), INF),
    "clamp both ways": (Net(lambda m, x: x.clamp(0, 6)), 6.0),
}


@pytest.mark.parametrize("name", RECTIFIERS)
def test_guided_relu_is_guided_backpropagation_by_hand(name: str) -> None:
    act, top = RECTIFIERS[name]
    guided = Net(lambda m, x: _Guided.apply(x, top))

    def network(one: nn.Module) -> nn.Sequential:
        parts = [nn.Conv2d(2, 4, 3), one, nn.Conv2d(4, 4, 3), one, nn.Flatten(), nn.Linear(64, 3)]
        return seeded(lambda: nn.Sequential(*parts)).double()

    hand = network(guided)
    model = network(act)
    model.load_state_dict(hand.state_dict())
    x = normal(2, 2, 8, 8).double() * 5
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    hand(a)[:, 1].sum().backward()
    with tt.edit(model, "*", edits.guided_relu()) as edit:
        model(b)[:, 1].sum().backward()
    close(b.grad, a.grad)
    assert sum(edit.fired.values()) >= 2


SOFT: dict[str, tuple[Any, str]] = {
    "SiLU": (nn.SiLU, "SiLU"),
    "GELU": (lambda inplace: nn.GELU(), "GELU"),
    "leaky ReLU": (lambda inplace: nn.LeakyReLU(inplace=inplace), "leaky"),
    "ELU": (lambda inplace: nn.ELU(inplace=inplace), "ELU"),
    "SELU": (nn.SELU, "SELU"),
    "CELU": (lambda inplace: nn.CELU(inplace=inplace), "CELU"),
    "randomised": (lambda inplace: nn.RReLU(inplace=inplace), "randomised"),
    "PReLU": (lambda inplace: nn.PReLU(), "PReLU"),
    "softplus": (lambda inplace: nn.Softplus(), "softplus"),
    "Mish": (nn.Mish, "Mish"),
    "hardswish": (nn.Hardswish, "hardswish"),
}


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("which", SOFT)
def test_guided_relu_refuses_what_it_has_no_meaning_for(which: str, inplace: bool) -> None:
    make, name = SOFT[which]
    # A ReLU beside it, so that something happens in any case.
    model = nn.Sequential(nn.Linear(3, 3), make(inplace=inplace), nn.Linear(3, 3), nn.ReLU()).eval()
    x = torch.ones(2, 3, requires_grad=True)
    with (
        pytest.raises(tt.EditError, match=rf"guided_relu.*met .*{name}"),
        tt.edit(model, "*", edits.guided_relu()),
    ):
        model(x)
    plain = torch.autograd.grad(model[:3](x).sum(), x)
    with tt.edit(model[:3], "*", edits.guided_relu(others="leave"), missing="ignore"):
        close(torch.autograd.grad(model[:3](x).sum(), x), plain)


NO_RECTIFIERS: dict[str, nn.Module] = {
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "hardtanh": nn.Hardtanh(-1, 1),
    "in-place hardtanh": nn.Hardtanh(-1, 1, inplace=True),
    "threshold below zero": nn.Threshold(-1.0, 0.0),
    "clamp below zero": Net(lambda m, x: x.clamp(min=-1)),
    "clamp by a tensor below zero": Net(lambda m, x: x.clamp(min=x.new_tensor([0.0, -1.0]))),
    "clamp from above": Net(lambda m, x: x.clamp(max=0)),
    "softmax": nn.Softmax(-1),
    "shrinking": nn.Hardshrink(),
    "a product with a mask": Net(lambda m, x: x * (x > 0)),
}


@pytest.mark.parametrize("name", NO_RECTIFIERS)
def test_what_is_no_rectifier_keeps_its_ordinary_gradient(name: str) -> None:
    act = NO_RECTIFIERS[name]
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))).double()
    whole = nn.Sequential(model, act, nn.Linear(2, 2).double())
    x = normal(4, 3).double().requires_grad_()
    with tt.edit(whole, "0", edits.guided_relu()):  # By hand: only the first part is guided.
        (right,) = torch.autograd.grad(whole(x).sum(), x)
    with tt.edit(whole, ".", edits.guided_relu()):
        (ours,) = torch.autograd.grad(whole(x).sum(), x)
    assert torch.equal(ours, right)


def test_guided_relu_of_some_modules_leaves_the_others() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(1, 1, bias=False), nn.ReLU())
    with torch.no_grad():
        model[1].weight.fill_(1.0)
    x = torch.ones(1, 1, requires_grad=True)
    with tt.edit(model, "2", edits.guided_relu()):
        (-model(x)).sum().backward()
    assert x.grad.item() == 0.0
    x.grad = None
    (-model(x)).sum().backward()
    assert x.grad.item() == -1.0  # type: ignore[attr-defined]
