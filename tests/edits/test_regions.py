"""``at=``: the region of a tensor that an edit changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchtap as tt


def test_what_is_infinite_outside_of_the_region_does_not_reach_a_learned_factor() -> None:
    factor = torch.ones(1, requires_grad=True)
    model, x = nn.Sequential(nn.Identity()), torch.tensor([[float("inf"), 2.0]])
    with tt.edit(model, "0", tt.edits.scale(factor, at={-1: 1})):
        model(x)[:, 1].sum().backward()
    assert factor.grad.item() == 2.0


def test_one_dimension_named_twice_is_an_error() -> None:
    model = nn.Sequential(nn.Identity())
    with (
        pytest.raises(tt.EditError, match=r"dimension -2 of float32\[2, 3\] twice"),
        tt.edit(model, "0", tt.edits.zero(at={0: 0, -2: 1})),
    ):
        model(torch.ones(2, 3))
