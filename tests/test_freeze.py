"""What is frozen does not move, whatever the optimizer; what is not frozen moves as without us."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import seeded
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net

SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


def mlp() -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))


def rows(seed: int = 0) -> Tensor:
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: SGD(p, lr=0.1),
    "SGD with momentum and decay": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "SGD for each": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True),
    "SGD fused": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "Adam": lambda p: Adam(p, lr=0.1, amsgrad=True),
    "AdamW for each": lambda p: AdamW(p, lr=0.1, foreach=True),
    "AdamW fused": lambda p: AdamW(p, lr=0.1, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.1),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, *, set_to_none: bool) -> None:
    for step in range(3):
        optimizer.zero_grad(set_to_none=set_to_none)
        model(rows(step)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("keep_grad", [False, True])
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_frozen_stays_and_the_rest_is_trained(
    name: str, set_to_none: bool, keep_grad: bool
) -> None:
    model = mlp()
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, set_to_none=set_to_none)  # Momentum and gradients are there.
    hand = copy.deepcopy(model)
    rest = OPTIMIZERS[name](hand.parameters())
    rest.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    before = [param.detach().clone() for param in model[0].parameters()]
    with tt.freeze(model, "0", keep_grad=keep_grad) as frozen:
        train(model, optimizer, set_to_none=set_to_none)
    assert frozen.params == ("0:param[weight]", "0:param[bias]")
    for param, old in zip(model[0].parameters(), before, strict=True):
        assert torch.equal(param, old)
        assert param.requires_grad
    for step in range(3):  # By hand: no gradient, no step.
        rest.zero_grad(set_to_none=True)
        hand(rows(step)).square().sum().backward()
        for param in hand[0].parameters():
            param.grad = None
        rest.step()
    for ours, right in zip(model.parameters(), hand.parameters(), strict=True):
        assert torch.equal(ours, right)
    # Given back, it moves again.
    train(model, optimizer, set_to_none=set_to_none)
    assert not torch.equal(model[0].weight, before[0])


def test_a_gradient_that_was_there_is_there_again_and_not_used() -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    model(rows()).sum().backward()
    gradient, before = model[0].weight.grad, model[0].weight.detach().clone()
    kept = gradient.clone()
    with tt.freeze(model, "0:param[weight]"):
        optimizer.step()
        assert model[0].weight.grad is gradient
    assert torch.equal(model[0].weight, before) and torch.equal(model[0].weight.grad, kept)


def test_without_keep_grad_nothing_is_computed_for_it() -> None:
    model = mlp()
    with tt.freeze(model, "0"):
        model(rows()).sum().backward()
        assert model[0].weight.grad is None and model[2].weight.grad is not None
    with tt.freeze(model, "0", keep_grad=True):
        model(rows()).sum().backward()
    assert model[0].weight.grad is not None


def test_what_did_not_require_grad_does_not_afterwards() -> None:
    model = mlp()
    model[0].bias.requires_grad_(False)
    frozen = tt.freeze(model)
    assert not any(param.requires_grad for param in model.parameters())
    frozen.close()
    frozen.close()
    assert [param.requires_grad for param in model.parameters()] == [True, False, True, True]
    assert "closed" in repr(frozen)


def test_freezes_one_inside_another_give_back_in_turn() -> None:
    model = mlp()
    with tt.freeze(model, "0"):
        with tt.freeze(model, "*"):
            assert not model[2].weight.requires_grad
        assert model[2].weight.requires_grad and not model[0].weight.requires_grad
    assert model[0].weight.requires_grad


def test_freezes_that_overlap_hold_until_the_last_is_closed() -> None:
    model = mlp()
    first, second = tt.freeze(model, "0"), tt.freeze(model, "*")
    first.close()
    assert not model[0].weight.requires_grad
    second.close()
    assert all(param.requires_grad for param in model.parameters())


def test_a_tied_weight_is_held_under_both_names() -> None:
    model = Net(lambda m, x: m.b(m.a(x)), a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    model.b.weight = model.a.weight
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    before = model.a.weight.detach().clone()
    with tt.freeze(model, "b"):
        train(model, optimizer, set_to_none=True)
    assert torch.equal(model.a.weight, before) and model.a.weight.requires_grad


def test_lbfgs_with_a_closure_leaves_the_frozen_alone() -> None:
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    before = [param.detach().clone() for param in model.parameters()]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(rows()).square().sum()
        loss.backward()
        return loss

    with tt.freeze(model, "0"):
        optimizer.step(closure)
    moved = [
        not torch.equal(param, old) for param, old in zip(model.parameters(), before, strict=True)
    ]
    assert moved == [False, False, True, True]


def test_lbfgs_with_kept_gradients_is_an_error_and_not_silence() -> None:
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(rows()).square().sum()
        loss.backward()
        return loss

    with (
        tt.freeze(model, "0", keep_grad=True),
        pytest.raises(tt.EditError, match=r"LBFGS moved 0:param\[weight\]"),
    ):
        optimizer.step(closure)


@pytest.mark.parametrize("training", [True, False])
def test_buffers_of_a_batch_norm_are_held_in_training_mode(training: bool) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))).train(training)
    model(rows(1))
    before = {name: one.clone() for name, one in model.named_buffers()}
    free = copy.deepcopy(model)
    with tt.freeze(model, "*@_BatchNorm:param,buffer") as frozen:
        for step in range(3):
            assert torch.equal(model(rows(step)), free(rows(step)))
    assert frozen.buffers == (
        "1:buffer[running_mean]",
        "1:buffer[running_var]",
        "1:buffer[num_batches_tracked]",
    )
    assert all(torch.equal(before[name], one) for name, one in model.named_buffers())
    if training:
        assert not torch.equal(free[1].running_mean, model[1].running_mean)
    model(rows())
    assert torch.equal(before["1.running_mean"], model[1].running_mean) is not training


def test_buffers_are_held_through_a_forward_that_raises() -> None:
    def body(m: Any, x: Tensor) -> Tensor:
        m.count.add_(1)
        raise ValueError("no")

    model = Net(body, count=torch.zeros(()))
    with tt.freeze(model, ".:buffer[count]"), pytest.raises(ValueError, match="no"):
        model(rows())
    assert model.count.item() == 0


CHOICES = {
    "*": {"0.weight", "0.bias", "2.weight", "2.bias"},
    "0": {"0.weight", "0.bias"},
    ".": {"0.weight", "0.bias", "2.weight", "2.bias"},
    "!2": {"0.weight", "0.bias"},
    "*:param[bias]": {"0.bias", "2.bias"},
    "2:param[weight]": {"2.weight"},
    "*@Linear": {"0.weight", "0.bias", "2.weight", "2.bias"},
}


@pytest.mark.parametrize("where", CHOICES)
def test_patterns_choose_what_is_held(where: str) -> None:
    model = mlp()
    with tt.freeze(model, where):
        held = {name for name, param in model.named_parameters() if not param.requires_grad}
    assert held == CHOICES[where]


def test_a_module_is_held_with_all_inside_but_what_is_taken_away() -> None:
    model = Net(lambda m, x: m.trunk(x), trunk=mlp())
    with tt.freeze(model, [model.trunk, "!trunk.2:param[bias]"]):
        held = {name for name, param in model.named_parameters() if not param.requires_grad}
    assert held == {"trunk.0.weight", "trunk.0.bias", "trunk.2.weight"}


def test_what_cannot_be_frozen_is_an_error() -> None:
    with pytest.raises(tt.SiteError):
        tt.freeze(mlp(), "7")
    with pytest.raises(tt.EditError, match="cannot be frozen"):
        tt.freeze(mlp(), "0:output")


@pytest.mark.parametrize("where", ["1", ["1", "!0"], ["0", "!0"]])
def test_a_freeze_of_no_parameters_is_an_error_and_not_of_all(where: Any) -> None:
    model = mlp()
    with pytest.raises(tt.SiteError, match="owns no parameters"):
        tt.freeze(model, where)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("where", [["*", "!2"], ["0", "!2"], ["*", "!0"]])
def test_a_tied_weight_cannot_be_held_by_one_name_and_free_by_the_other(where: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    with pytest.raises(tt.EditError, match=r"weight\].*the same parameter as .*weight\]"):
        tt.freeze(model, where)
    with tt.freeze(model, ["*", "!0:param[bias]"]):
        assert not model[0].weight.requires_grad and model[0].bias.requires_grad


def test_another_models_optimizer_is_left_alone() -> None:
    model, other = mlp(), mlp()
    with tt.freeze(model):
        train(other, SGD(other.parameters(), lr=0.1), set_to_none=True)
    assert not torch.equal(other[0].weight, model[0].weight)


def test_no_hook_stays_on_optimizers() -> None:
    from torch.optim import optimizer as home

    before = dict(home._global_optimizer_pre_hooks), dict(home._global_optimizer_post_hooks)
    with tt.freeze(mlp()):
        pass
    assert before == (
        dict(home._global_optimizer_pre_hooks),
        dict(home._global_optimizer_post_hooks),
    )


def test_an_optimizer_step_that_raises_leaves_the_gradient_in_place() -> None:
    class Failing(SGD):
        def step(self, closure: Any = None) -> None:
            raise ValueError("no")

    model = mlp()
    model(rows()).sum().backward()
    gradient = model[0].weight.grad
    optimizer, plain = Failing(model.parameters(), lr=0.1), SGD(model.parameters(), lr=0.1)
    with tt.freeze(model, "0"):
        with pytest.raises(ValueError, match="no"):
            optimizer.step()
        plain.step()
    assert model[0].weight.grad is gradient
