"""Several edits of one call."""

from __future__ import annotations

import pytest
import torch
from random_numbers import normal
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net


def test_the_first_edit_that_raises_is_the_last_that_is_asked() -> None:
    model, asked = nn.Sequential(nn.Identity()), []

    def fails(tensor: Tensor) -> Tensor:
        raise KeyError("mine")

    def note(tensor: Tensor) -> None:
        asked.append(tensor)

    for ports in ("output", "input,output"):
        with (
            tt.edit(model, "0:output", fails, missing="ignore"),
            tt.edit(model, f"0:{ports}", note, missing="ignore"),
        ):
            with pytest.raises(KeyError, match="mine"):
                model(torch.ones(1))
            assert len(asked) == (ports != "output")
        asked.clear()
        with tt.edit(model, f"0:{ports}", note):
            try:
                raise ValueError
            except ValueError:  # An exception of the caller is being handled.
                model(torch.ones(1))
        assert len(asked) == len(ports.split(","))
        asked.clear()


def halves(tensor: Tensor) -> Tensor:
    """Times 2, and a view at the end: no other reference to the new tensor is left."""
    return (tensor.reshape(-1, 2) * 2).view(tensor.shape)


def test_arguments_that_are_edited_twice_stay_apart() -> None:
    model = Net(lambda m, x, y: m.minus(x, y), minus=Net(lambda m, x, y: x - y))
    for seed in range(20):
        x = normal(2, 4, seed=seed).requires_grad_()
        with tt.edit(model, "minus:input,grad_input", halves):
            out = model(x, x * 3)
        assert torch.equal(out, 2 * x - 2 * (x * 3))


def test_outputs_that_are_edited_twice_stay_apart() -> None:
    model = Net(lambda m, x: m.pair(x), pair=Net(lambda m, x: (x + 1, x * 5, x)))
    for seed in range(20):
        x = normal(2, 4, seed=seed).requires_grad_()
        with tt.edit(model, "pair:output,grad_output", halves, missing="ignore"):
            first, second, third = model(x)
        assert torch.equal(first, 2 * (x + 1))
        assert torch.equal(second, 2 * (x * 5)) and torch.equal(third, 2 * x)
