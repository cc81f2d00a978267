"""Gradients of returned views that are overwritten afterwards."""

from __future__ import annotations

import pytest
import torch
from models import seeded
from torch import Tensor, nn

import torchtap as tt


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
