"""Backward passes are told apart and numbered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from absent import reasons
from models import squares
from random_numbers import leaf, wide
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.tensors import storage_id
from torchtap.hooks.backwards import Backwards, given_storages
from torchtap.testing import Net


def test_two_backwards_through_one_graph_give_two_records() -> None:
    model, x = squares(), leaf(2)
    with tt.watch(model, ".:grad_output,grad_input") as w:
        y = model(x).sum()
        y.backward(retain_graph=True)
        (3 * y).backward()
    found = {record.backward: record.value for record in w.run.records(".:grad_output")}
    assert {number: value.tolist() for number, value in found.items()} == {0: [1, 1], 1: [3, 3]}
    torch.testing.assert_close(w.run.get(".:grad_input", backward=0), 2 * x.detach())
    torch.testing.assert_close(w.run.get(".:grad_input", backward=1), 6 * x.detach())


def test_the_second_order_is_a_backward_of_its_own() -> None:
    model, x = squares(), leaf(2)
    with tt.watch(model, ".:grad_output") as w:
        y = model(x)
        (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)  # 4 x^3
        (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 12 * x.detach() ** 2)
    value = x.detach()
    torch.testing.assert_close(w.run.get(".:grad_output", backward=0), 2 * value**2)
    # The penalty 4 x^3 = 2 y * 2 x is 4 x in y, seen from the graph of the first backward.
    torch.testing.assert_close(w.run.get(".:grad_output", backward=1), 4 * value)


def test_double_backward_is_bit_equal_to_unwatched() -> None:
    def penalty(model: nn.Module, x: Tensor) -> list[Tensor]:
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (gradient**2).sum().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    plain = [gradient.clone() for gradient in penalty(model, leaf(5, 3))]
    model.zero_grad()
    with tt.watch(model, "*:*"):
        watched = penalty(model, leaf(5, 3))
    assert len(plain) == 3
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_gradients_are_kept_when_only_asked_for() -> None:
    model, x = squares(), leaf(2)
    with tt.watch(model, ".:grad_output,grad_input") as w:
        (gradient,) = torch.autograd.grad(model(x).sum(), x)
    assert torch.equal(w.run[".:grad_input"], gradient)
    assert x.grad is None


def test_backward_with_chosen_inputs_reaches_what_is_on_the_way() -> None:
    model, x = Net(lambda m, x: m.b(m.a(x)), a=squares(), b=squares()), leaf(2)
    with tt.watch(model, "*:grad_output") as w:
        model(x).sum().backward(inputs=[x])
    torch.testing.assert_close(w.run["a:grad_output"], 2 * x.detach() ** 2)


def test_a_backward_inside_a_backward_is_part_of_it() -> None:
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                again = x.detach().requires_grad_()
                (again**3).sum().backward()
            return gradient * again.grad

    model, x = Net(lambda m, x: m.a(Inner.apply(x)), a=squares()), leaf(2)
    with tt.watch(model, "*:grad_output,grad_input") as w:
        model(x).sum().backward()
    torch.testing.assert_close(w.run[".:grad_input"], 6 * x.detach() ** 5)
    assert {record.backward for record in w.run.records()} == {0}


def batch_of_backwards(y: Tensor, x: Tensor, eye: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(y, x, eye, is_grads_batched=True)
    return gradient


def vmap_over_backward(y: Tensor, x: Tensor, eye: Tensor) -> Tensor:
    return torch.vmap(lambda g: torch.autograd.grad(y, x, g, retain_graph=True)[0])(eye)


@pytest.mark.parametrize("batched", [batch_of_backwards, vmap_over_backward])
@pytest.mark.parametrize("sink", [tt.Memory, tt.Stats])
def test_a_batch_of_backwards_runs_and_is_listed_as_absent(batched: Any, sink: Any) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.flat(m.square(x))
        y.mul_(3)
        return y

    model = Net(forward, square=squares(), flat=nn.Flatten(0))
    x, eye = leaf(2, 1), torch.eye(2, dtype=torch.float64)
    with tt.watch(model, "*:grad_output,grad_input", to=sink()) as w:
        jacobian = batched(model(x), x, eye)
    torch.testing.assert_close(jacobian.reshape(2, 2), 6 * torch.diag(x.detach().flatten()))
    assert w.run.sites == []
    assert "batch of gradients" in reasons(w)["square:grad_output"]
    assert "batch of gradients" in reasons(w)[".:grad_input"]


def test_a_jacobian_one_by_one_is_several_backwards() -> None:
    model, x = squares(), wide(2)
    with tt.watch(model, ".:grad_output") as w:
        torch.autograd.functional.jacobian(model, x)
    assert [record.value.tolist() for record in w.run.records()] == [[1.0, 0.0], [0.0, 1.0]]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f, self.g = nn.Linear(3, 3), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.g(self.f(x)) + x


def test_gradients_handed_in_are_kept_though_their_buffer_is_used_again() -> None:
    model, x = Residual(), torch.randn(5, 3, requires_grad=True)
    buffer = torch.ones(5, 3)
    backwards: list[Callable[[Tensor], object]] = [
        lambda y: y.backward(buffer),
        lambda y: y.view(-1).backward(buffer.view(-1)),
        lambda y: torch.autograd.backward([y, y.sum()], [buffer, None]),
        lambda y: torch.autograd.grad(y, x, buffer),
    ]
    with tt.watch(model, "*:grad_output,grad_input") as w:
        for _ in range(3):
            for backward in backwards:
                buffer.data.fill_(3)  # What autograd does not count, like a receive of a pipeline.
                backward(model(x))
                buffer.data.fill_(7)
            w.step()
    for record in w.run.records(["*:grad_output", "g:grad_input"]):
        expected = 4 if record.call == 2 else 3
        assert record.value.unique().tolist() == [expected], record
    assert len(list(w.run.records("g:grad_output"))) == 12


def test_gradients_handed_in_are_found_from_threads_of_the_engine() -> None:
    y, buffer = torch.ones(3, requires_grad=True) * 2, torch.ones(3)
    found: list[set[int]] = []

    def look(_: Tensor) -> None:
        thread = threading.Thread(target=lambda: found.append(given_storages()))
        thread.start()
        thread.join()

    y.register_hook(look)
    y.backward(buffer)
    assert found == [{storage_id(buffer)}]
    assert given_storages() == set()


def test_another_thread_may_begin_a_step_while_a_backward_runs_inside_another() -> None:
    backwards, numbers = Backwards(), []
    inner = torch.ones(2, requires_grad=True)

    def run_another(grad: Tensor) -> None:
        numbers.append(backwards.number())
        other = threading.Thread(target=backwards.restart)
        other.start()
        other.join()
        with torch.enable_grad():
            found = inner * 2
            found.register_hook(lambda grad: numbers.append(backwards.number()))
            found.sum().backward()

    outer = torch.ones(2, requires_grad=True) * 3
    outer.register_hook(run_another)
    outer.sum().backward()
    assert numbers == [0, 0]
    assert inner.grad is not None
    assert inner.grad.tolist() == [2, 2]
