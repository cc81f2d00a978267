"""An edit whose function cannot do its work raises an error that says so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt


@pytest.mark.parametrize(
    ("where", "harm"),
    [
        ("0", "gives right values and wrong gradients"),
        ("0:grad_output", "may share that memory with other gradients"),
    ],
)
def test_writing_into_a_tensor_is_refused_with_the_harm_it_does_there(
    where: str, harm: str
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with (
        pytest.raises(tt.EditError, match=f"wrote into the tensor .* {harm}"),
        tt.edit(model, where, lambda tensor: tensor.mul_(2)),
    ):
        model(torch.ones(1, 2)).sum().backward()


def test_a_patch_of_one_call_for_many_says_how() -> None:
    model, x = nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2)
    with tt.watch(model, "0") as w:
        model(0 * x)
    with (
        tt.edit(model, "0", tt.edits.patch(w.run)),
        pytest.raises(tt.EditError, match="Pass call=0"),
    ):
        model(x)
        model(x)
    with tt.edit(model, "0", tt.edits.patch(w.run, call=0)) as edit:
        model(x)
        model(x)
    assert edit.fired == {"0:output": 2}


def test_a_function_that_detaches_what_it_is_given_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def cut(tensor: Tensor) -> Tensor:
        return tensor.detach_() * 2

    with pytest.raises(tt.EditError, match="'cut' at 0:output"), tt.edit(model, "0", cut):
        model(torch.ones(1, 2))
