"""``clip_norm(over="all")``: one norm over the gradients of all parameters."""

from __future__ import annotations

import pytest
import torch
from edited import close
from models import grads, mlp, scaled_step
from random_numbers import leaf
from torch import Tensor, nn

import torchtap as tt


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.1, 1e6, 0.0])
def test_clip_norm_over_all_is_that_of_torch(p: float, max_norm: float) -> None:
    x = leaf(5, 3).detach()
    hand, model = mlp().double(), mlp().double()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (hand, model)]
    with tt.edit(model, "*:param_grad", tt.edits.clip_norm(max_norm, p=p, over="all")) as edit:
        for _ in range(3):
            for one, optimizer in zip((hand, model), optimizers, strict=True):
                optimizer.zero_grad()
                for _ in range(2):  # Accumulated.
                    one(x).square().sum().backward()
            nn.utils.clip_grad_norm_(hand.parameters(), max_norm, norm_type=p)
            for optimizer in optimizers:
                optimizer.step()
    close(list(model.parameters()), list(hand.parameters()))
    assert set(edit.fired.values()) == {3}


def test_clip_norm_over_all_takes_only_what_was_selected() -> None:
    x = leaf(5, 3).detach()
    hand, model = mlp().double(), mlp().double()
    for one in (hand, model):
        one(x).square().sum().backward()
    nn.utils.clip_grad_norm_(hand[2].parameters(), 0.1)
    with tt.edit(model, "2:param_grad", tt.edits.clip_norm(0.1, over="all")):
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    close(grads(model), grads(hand))


def test_clip_norm_over_all_without_an_optimizer_step_is_an_error_at_closing() -> None:
    model = mlp().double()
    with (
        pytest.raises(tt.EditError, match="no optimizer made a step"),
        tt.edit(model, "*:param_grad", tt.edits.clip_norm(1.0, over="all")),
    ):
        model(leaf(2, 3)).sum().backward()


def test_clip_norm_over_all_edits_no_other_port() -> None:
    with pytest.raises(tt.EditError, match="cannot edit output"):
        tt.edit(mlp().double(), "*", tt.edits.clip_norm(1.0, over="all"))


def test_clip_norm_over_all_refuses_an_optimizer_with_a_closure() -> None:
    model, x = mlp().double(), leaf(5, 3)
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    with (
        pytest.raises(tt.EditError, match="closure"),
        tt.edit(model, "*:param_grad", tt.edits.clip_norm(1.0, over="all")),
    ):
        optimizer.step(closure)


@pytest.mark.parametrize("fused", [False, True])
def test_clip_norm_over_all_works_in_true_units_under_a_scaler(fused: bool) -> None:
    x = leaf(5, 3, dtype=torch.float32).detach()

    def run(*, is_edited: bool) -> nn.Module:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused and is_edited)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

        def clip() -> None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)

        if is_edited:
            with tt.edit(model, "*:param_grad", tt.edits.clip_norm(0.1, over="all")):
                for _ in range(3):
                    optimizer.zero_grad()
                    scaled_step(model, x, optimizer, scaler)
        else:
            for _ in range(3):
                optimizer.zero_grad()
                scaled_step(model, x, optimizer, scaler, clip)
        return model

    close(list(run(is_edited=True).parameters()), list(run(is_edited=False).parameters()))
