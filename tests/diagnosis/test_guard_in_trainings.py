"""A guard in whole trainings: beside others, with batch norm, with outputs that are used inside."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from faulty_steps.planted import Op
from models import seeded
from random_numbers import normal
from torch import Tensor, nn

import torchtap as tt
from torchtap.diagnosis.origins.suspects import gradients_are_finite
from torchtap.testing import Net

INF = float("inf")


def _net(norm: nn.Module) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8), norm, nn.ReLU(), nn.Linear(8, 2)))


def _steps(model: nn.Module, *, bad: int, value: float = INF) -> None:
    """Four steps of Adam; in one of them, row 2 of the batch is not finite."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        x = normal(5, 6, seed=step)
        if step == bad:
            x[2] = value
        model(x).square().mean().backward()
        optimizer.step()


def test_two_guards_and_a_watch_stand_beside_each_other() -> None:
    first, second = _net(nn.Identity()), _net(nn.Identity())
    both = nn.ModuleList([first, second])
    with (
        tt.guard(first, on=lambda origin: None) as one,
        tt.guard(second, on=lambda origin: None) as other,
        tt.watch(both, "*:update", to=tt.Stats()),
    ):
        _steps(first, bad=9)
        _steps(second, bad=1)
    assert one.origin is None
    assert other.origin is not None
    assert other.origin.phase == "input"


def test_what_the_forward_wrote_into_a_batch_norm_is_no_cause() -> None:
    model = _net(nn.BatchNorm1d(8))
    with tt.guard(model, on=lambda origin: None) as guard:
        _steps(model, bad=2, value=float("nan"))
    assert guard.origin is not None
    assert (guard.origin.phase, tuple(guard.origin.rows)) == ("input", (2,))


class _HandsOut(nn.Module):
    """Also returns what it goes on with, as models with caches and hidden states do."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 4), nn.Linear(4, 1)
        self.root = Op(lambda h: (h * 0).sqrt())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output, and the hidden state."""
        h = self.enter(x)
        return self.leave(h + self.root(h)), h


def test_an_output_that_is_used_inside_too_hides_nothing() -> None:
    model = seeded(_HandsOut)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tt.guard(model, on=lambda origin: None) as guard:
        model(normal(3, 4, seed=0))[0].mean().backward()
        optimizer.step()
    assert guard.origin is not None
    assert (guard.origin.phase, guard.origin.module) == ("backward", "root")


def test_a_buffer_that_is_filled_again_is_said_to_be_overwritten() -> None:
    model = _net(nn.Identity())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    static = normal(5, 6, seed=0).fill_(INF)
    with tt.guard(model, on=lambda origin: None) as guard:
        model(static).mean().backward()
        static.fill_(0.5)
        optimizer.step()
    assert guard.origin is not None
    assert "overwritten before the replay" in guard.origin.text
    assert "hardware" not in guard.origin.text


def test_tokens_that_are_filled_again_are_said_to_be_overwritten() -> None:
    model = nn.Sequential(
        nn.Embedding(2, 3, _weight=torch.tensor([[1.0] * 3, [0.0] * 3])), Op(torch.log)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    static = torch.tensor([0, 1])
    with tt.guard(model, on=lambda origin: None) as guard:
        model(static).mean().backward()
        static.fill_(0)
        optimizer.step()
    assert guard.origin is not None
    assert "overwritten before the replay" in guard.origin.text


def test_a_buffer_that_is_written_for_the_first_time_is_said_to_be_overwritten() -> None:
    model = _DividesByWhatIsLeft()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tt.guard(model, on=lambda origin: None) as guard:
        for scale in (1.0, 1.0, 2.0):
            optimizer.zero_grad()
            model(torch.full((2,), scale)).sum().backward()
            optimizer.step()
    assert list(guard.origins) == [2]
    assert "overwritten before the replay" in guard.origins[2].text


class _DividesByWhatIsLeft(nn.Module):
    """Makes an infinity of what stands in a buffer, and writes into it then."""

    left: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("left", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if x[0] == 1:
            return self.weight * x
        out = self.weight * x / self.left.clone()
        self.left.fill_(1.0)
        return out


def test_an_argument_made_in_inference_mode_harms_no_training() -> None:
    model = seeded(lambda: nn.Linear(3, 2))
    with torch.inference_mode():
        shift = torch.ones(2)
    net = Net(lambda m, x, shift: m.linear(x) + shift, linear=model)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with tt.guard(net) as guard:
        for step in range(3):
            net(normal(4, 3, seed=step), shift).square().mean().backward()
            optimizer.step()
    assert guard.origin is None


def test_gradients_without_numbers_harm_no_training() -> None:
    model = _net(nn.Identity()).to("meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tt.guard(model) as guard:
        for _ in range(2):
            model(torch.ones(3, 6, device="meta")).mean().backward()
            optimizer.step()
    assert guard.origin is None


@pytest.mark.parametrize("bad", [INF, -INF, float("nan")])
@pytest.mark.parametrize("kind", ["dense", "gaps", "sparse", "float64", "float8"])
def test_a_gradient_of_any_kind_is_looked_at(kind: str, bad: float) -> None:
    gradient = torch.full((4, 6), 1e30)  # Of which the sum of squares is infinite.
    kinds = {
        "dense": lambda: gradient,
        "gaps": lambda: gradient.repeat_interleave(2, 1)[:, ::2],
        "sparse": lambda: gradient.to_sparse(),
        "float64": lambda: gradient.double(),
        "float8": lambda: (gradient / 1e30).to(torch.float8_e5m2),
    }
    param = nn.Parameter(kinds[kind]().detach().clone())
    param.grad = kinds[kind]()
    assert gradients_are_finite([param])
    gradient[2, 3] = bad
    param.grad = kinds[kind]()
    assert not gradients_are_finite([param])


def test_a_gradient_that_is_altered_after_the_backward_is_no_race() -> None:
    model = _net(nn.Identity())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tt.guard(model, on=lambda origin: None) as guard:
        model(normal(5, 6, seed=0)).mean().backward()
        for param in list(model.parameters())[:1]:
            assert param.grad is not None
            param.grad[0, 0] = INF
        optimizer.step()
    assert guard.origin is not None
    assert guard.origin.phase == "optimizer"
    assert "clipping" in guard.origin.text


def test_a_parameter_beside_the_model_is_said_to_be_none_of_its_own() -> None:
    first, second = _net(nn.Identity()), _net(nn.Identity())
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    x = normal(5, 6, seed=0)
    with tt.guard(first, on=lambda origin: None) as guard:
        (first(x).mean() + second(x * INF).mean()).backward()
        optimizer.step()
    assert guard.origin is not None
    assert "no part of this model" in guard.origin.text


def test_a_finished_step_keeps_no_batch_and_no_gradient() -> None:
    model = _net(nn.Identity())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    alive: list[list[weakref.ref[Tensor]]] = []
    with tt.guard(model, keep=3):
        for step in range(3):
            x = normal(5, 6, seed=step)
            out = model(x)
            alive.append([weakref.ref(x), weakref.ref(out)])
            out.register_hook(lambda gradient, own=alive[-1]: own.append(weakref.ref(gradient)))
            out.square().mean().backward()
            optimizer.step()
            del x, out
            assert [all(one() is None for one in refs) for refs in alive[:-1]] == [True] * step
            assert all(one() is not None for one in (alive[-1][0], alive[-1][2]))


def test_a_closed_guard_keeps_no_batch() -> None:
    model, x = _net(nn.Identity()), normal(5, 6, seed=0)
    alive = weakref.ref(x)
    guard = tt.guard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(x).mean().backward()
    optimizer.step()
    guard.close()
    del x
    gc.collect()
    assert alive() is None
