"""The rule ``nonfinite`` blames a module only where it saw that what went in was finite.

The place of the fault is planted by hand in each case.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchtap as tt


def _found(where: str, x: torch.Tensor, *, backward: bool = False) -> tt.Finding:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    for param in model.parameters():
        nn.init.ones_(param)
    with tt.watch(model, where, to=tt.Stats()) as w:
        for one in (torch.ones(2, 3), x):
            out = model(one)
            if backward:
                out.square().sum().backward()
            w.step()
    return tt.diagnose(w.run, rules=[tt.rules.nonfinite]).findings[0]


_CAME_IN = torch.tensor([[1.0, float("inf"), 0.0], [1.0, 2.0, 3.0]])
_OVERFLOWS = torch.full((2, 3), 3e38)


def test_an_input_that_is_not_watched_is_not_said_to_be_finite() -> None:
    found = _found("*:output", _CAME_IN)
    assert found.path == "0"
    assert "of a finite input" not in found.text
    assert found.text.endswith("its input is not watched")


def test_an_input_that_is_watched_and_finite_blames_the_module() -> None:
    found = _found("*:input,output", _OVERFLOWS)
    assert found.path == "0"
    assert found.text == "its output is the first that is not finite, of a finite input"


def test_the_models_own_input_is_named_where_it_is_watched() -> None:
    found = _found("*:input,output", _CAME_IN)
    assert (found.path, found.text) == (".", "the model's own input is not finite")


def test_an_input_alone_names_no_parent() -> None:
    found = _found("1:input", _CAME_IN)
    assert found.path == "1"
    assert found.text == "its input is not finite; where that comes from is not watched"


@pytest.mark.parametrize("where", ["*:param_grad", "*:grad_input"])
def test_a_gradient_that_is_not_watched_is_not_said_to_be_finite(where: str) -> None:
    found = _found(where, _CAME_IN, backward=True)
    assert found.text.endswith("the gradient of its output is not watched")
