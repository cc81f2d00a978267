"""The port ``update``: the change of each parameter in a step of its optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from absent import reasons_at
from torch import Tensor, nn

import torchtap as tt


class Slow(torch.optim.Optimizer):
    """Lookahead: goes half the way of the optimizer inside."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        params = [p for group in self.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in params]
        self.inner.step()
        with torch.no_grad():
            for param, old in zip(params, before, strict=True):
                param.copy_((param + old) / 2)


def test_the_update_of_a_nested_optimizer_is_that_of_the_outer_one() -> None:
    model = nn.Linear(2, 1)
    optimizer = Slow(torch.optim.SGD(model.parameters(), lr=1.0))
    before = model.weight.detach().clone()
    with tt.watch(model, ".:update") as w:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    (record,) = w.run.records(".:update[weight]")
    assert torch.equal(record.value, model.weight.detach() - before)


def test_tied_weights_have_their_update_at_both_places() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed(x))

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tt.watch(model, "*:update") as w:
        model(torch.tensor([1, 2])).square().sum().backward()
        optimizer.step()
    assert torch.equal(w.run["embed:update[weight]"], w.run["head:update[weight]"])
    assert w.absent == []


@pytest.mark.parametrize(
    ("requires_grad", "right"),
    [
        (False, "it does not require grad, and no optimizer made a step with it"),
        (True, "no optimizer made a step with it in step 0: those that made one do not hold it"),
    ],
    ids=["frozen", "not held"],
)
def test_a_parameter_that_no_optimizer_holds_has_no_update(requires_grad: bool, right: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model[0].requires_grad_(requires_grad)  # Frozen, as the weights beside those of LoRA.
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with tt.watch(model, "*:update") as w:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        w.step()
    assert reasons_at(w, "0:update[weight]") == [right]
