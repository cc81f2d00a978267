"""``Module.to`` converts by ``torch.utils.swap_tensors``: it works, and hooks work after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from absent import reasons
from torch import Tensor, nn

import torchtap as tt


@pytest.fixture(autouse=True)
def swaps() -> Iterator[None]:
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


def backward(model: nn.Linear, x: Tensor) -> None:
    model.zero_grad()
    model(x.to(model.weight.dtype)).sum().backward()


X = torch.tensor([[1.0, 2.0]])


@pytest.mark.parametrize("to", [tt.Memory, tt.Stats])
def test_state_is_taken_after_a_conversion(to: type) -> None:
    model = nn.Linear(2, 1, bias=False)
    weight = model.weight.detach().double().mean().item()
    with tt.watch(model, ".:param,param_grad,update", to=to()) as w:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        backward(model, X)
        w.step()
        model.double()
        backward(model, 10 * X)
        optimizer.step()
    mean = {site.port: w.run.over_steps(site, "mean") for site in w.run.sites}
    assert mean["param"][1] == pytest.approx([weight, weight])
    assert mean["param_grad"] == ([0], [1.5])
    assert "swap_tensors" in reasons(w)[".:param_grad[weight]"]
    assert mean["update"][1][-1] == -15.0
    assert model.weight._post_accumulate_grad_hooks is None


@pytest.mark.parametrize("port", ["param", "buffer", "param_grad"])
def test_a_model_that_was_watched_is_converted(port: str) -> None:
    model = nn.BatchNorm1d(2)
    with tt.watch(model, f".:{port}"):
        model(torch.randn(4, 2)).sum().backward()
        model.zero_grad()
    model.double()
    assert model.weight.dtype == torch.float64


def test_an_edit_that_lost_its_gradient_by_a_conversion_is_an_error() -> None:
    model = nn.Linear(2, 1, bias=False)
    edit = tt.edit(model, ".:param_grad", tt.edits.scale(3.0))
    backward(model, X)
    model.double()
    backward(model, X)
    with pytest.raises(tt.EditError, match="swap_tensors"):
        edit.close()
    with tt.edit(model, ".:param_grad", tt.edits.scale(3.0)):
        backward(model, X)
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[3.0, 6.0]]


def test_hooks_of_the_user_work_through_swaps_there_and_back() -> None:
    """Training by a hook, and evaluation of averaged weights by swapping them in."""

    def trained(*, watched: bool) -> Tensor:
        torch.manual_seed(0)
        model, average = nn.Linear(2, 1), nn.Parameter(torch.ones(1, 2))

        def step(param: Tensor) -> None:
            assert param.grad is not None
            param.data.sub_(param.grad, alpha=0.1)
            param.grad = None

        with tt.watch(model, "*:param_grad") if watched else contextlib.nullcontext():
            model.weight.register_post_accumulate_grad_hook(step)
            model(X).sum().backward()
            torch.utils.swap_tensors(model.weight, average)
            model(X)
            torch.utils.swap_tensors(model.weight, average)
            for _ in range(2):
                model(X).sum().backward()
        return model.weight.data

    assert torch.equal(trained(watched=True), trained(watched=False))


def test_a_hook_of_the_user_that_comes_after_a_closed_watch_and_a_conversion_is_called() -> None:
    model, heard = nn.Linear(2, 1, bias=False), []
    with tt.watch(model, ".:param_grad"):
        backward(model, X)
    model.double()
    model.weight.register_post_accumulate_grad_hook(lambda param: heard.append(1))
    backward(model, X)
    assert heard == [1]


def test_a_frozen_model_is_converted() -> None:
    model = nn.Linear(2, 1)
    with tt.freeze(model):
        model.double()
        assert not model.weight.requires_grad
    assert model.weight.requires_grad and model.weight.dtype == torch.float64
