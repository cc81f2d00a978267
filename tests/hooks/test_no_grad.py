"""Grad modes, and why a gradient is missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from absent import reasons
from models import squares
from random_numbers import leaf, wide
from torch import nn

import torchtap as tt
from torchtap.testing import Net


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_values_are_kept_without_grad(mode: Any) -> None:
    model, x = squares(), wide(3)
    with tt.watch(model, ".:*") as w, mode():
        model(x)
    assert torch.equal(w.run[".:input"], x)
    assert torch.equal(w.run[".:output"], x * x)


@pytest.mark.parametrize(
    ("mode", "reason"), [(torch.no_grad, "grad mode"), (torch.inference_mode, "inference mode")]
)
def test_gradients_without_grad_mode_are_listed_as_absent(mode: Any, reason: str) -> None:
    model = squares()
    with tt.watch(model, ".:grad_output") as w, mode():
        model(leaf(3))
    assert reason in reasons(w)[".:grad_output"]


def test_an_inference_tensor_is_kept_as_a_plain_one() -> None:
    model = squares()
    with tt.watch(model) as w, torch.inference_mode():
        model(wide(3)).mul_(0)
    assert torch.equal(w.run[".:output"], wide(3) ** 2)


def test_an_integer_output_has_no_gradient_with_a_reason() -> None:
    model = Net(lambda m, x: x.argmax())
    with tt.watch(model, ".:output,grad_output") as w:
        model(leaf(3))
    assert w.run[".:output"].dtype == torch.int64
    assert reasons(w) == {".:grad_output": "int64 carries no gradient"}


def test_an_input_that_needs_no_grad_is_listed_as_absent() -> None:
    model = nn.Linear(2, 2)
    with tt.watch(model, ".:grad_input") as w:
        model(torch.ones(1, 2)).sum().backward()
    assert reasons(w) == {".:grad_input": "it does not require grad"}


def test_a_gradient_that_never_came_is_listed_as_absent() -> None:
    model = squares()
    with tt.watch(model, ".:grad_output") as w:
        model(leaf(3))
    assert "no backward was run" in reasons(w)[".:grad_output"]


def test_a_gradient_that_came_is_not_listed_as_absent() -> None:
    model = squares()
    with tt.watch(model, ".:grad_output") as w:
        model(leaf(3)).sum().backward()
    assert w.absent == []


def test_gradients_that_came_for_some_calls_are_counted() -> None:
    model = squares()
    with tt.watch(model, ".:grad_output") as w:
        model(leaf(3))
        model(leaf(3)).sum().backward()
    assert reasons(w) == {".:grad_output": "no gradient arrived for 1 of 2 calls"}


def test_an_output_outside_of_the_loss_has_no_gradient() -> None:
    model = Net(lambda m, x: (m.used(x), m.unused(x))[0], used=squares(), unused=squares())
    with tt.watch(model, "*used:grad_output") as w:
        model(leaf(3)).sum().backward()
    assert [str(site) for site in w.run.sites] == ["used:grad_output"]
    assert list(reasons(w)) == ["unused:grad_output"]
