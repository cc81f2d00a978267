"""Pauses, the trainer's own step numbers, and numbers that a training logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


# --- pauses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sink", [tt.Memory, tt.Stats])
def test_nothing_is_recorded_in_a_pause(sink: Any) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ports = "*:output,grad_output,param,param_grad,step_grad,update"
    with tt.watch(model, ports, to=sink()) as w:
        with w.pause():
            for _ in range(3):
                model(X).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        before = model[0].weight.detach().clone()
        model(2 * X).sum().backward()
        gradient = model[0].weight.grad.clone()
        optimizer.step()
    assert w.current_step == 0
    assert all(w.run.stats(site).num_tensors == 1 for site in w.run.sites)
    assert w.run.stats("0:param[weight]").l2 == pytest.approx(before.norm().item())
    assert w.run.stats("0:step_grad[weight]").l2 == pytest.approx(gradient.norm().item())
    assert w.absent == []


def test_a_pause_is_ended_by_hand_too_and_nests() -> None:
    model = mlp()
    with tt.watch(model, "0") as w:
        w.pause()
        with w.pause():
            model(X)
        model(X)
        w.resume()
        model(X)
    assert len(w.run) == 1
    with pytest.raises(tt.CaptureError, match="not paused"):
        w.resume()


def test_a_pause_ends_when_what_runs_in_it_raises() -> None:
    model = mlp()
    with tt.watch(model, "0") as w:
        with pytest.raises(ZeroDivisionError), w.pause():
            raise ZeroDivisionError
        model(X)
    assert len(w.run) == 1


def test_gradients_of_calls_before_a_pause_arrive_in_it() -> None:
    model = mlp()
    with tt.watch(model, "0:output,grad_output,param_grad") as w:
        loss = model(X).sum()
        with w.pause():
            loss.backward()
    twin = mlp()
    first = twin[0](X)
    expected = torch.autograd.grad(twin[2](twin[1](first)).sum(), first)[0]
    assert torch.equal(w.run["0:grad_output"], expected)
    assert "0:param_grad[weight]" not in w.run


def test_a_step_that_every_leaves_out_is_not_recorded_after_a_pause() -> None:
    model = mlp()
    with tt.watch(model, "0", every=2) as w:
        for _ in range(4):
            with w.pause():
                model(X)
            model(X)
            w.step()
    assert w.run.steps == [0, 2]
    assert len(w.run) == 2


def test_steps_go_on_in_a_pause() -> None:
    model = mlp()
    with tt.watch(model, "0") as w:
        model(X)
        with w.pause():
            w.step()
            model(X)
            w.step()
        model(X)
    assert [(record.step, record.call) for record in w.run.records()] == [(0, 0), (2, 0)]


def test_a_pause_in_the_middle_of_a_call_leaves_out_what_runs_then() -> None:
    class Pausing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            with w.pause():
                x = self.first(x)
            return self.second(x)

    model = Pausing()
    with tt.watch(model, "*:input,output") as w:
        for _ in range(2):
            model(X).sum().backward()
            w.step()
    assert {str(site) for site in w.run.sites} == {
        ".:input",
        ".:output",
        "second:input",
        "second:output",
    }
    assert w.run.steps == [0, 1]


def test_a_watch_that_is_left_paused_is_closed_as_any_other() -> None:
    model = mlp()
    w = tt.watch(model)
    w.pause()
    model(X)
    w.close()
    assert len(w.run) == 0
    assert {entry.reason for entry in w.absent} == {
        "the watch was paused whenever the model was called, or it was not called"
    }
    assert not any(module._forward_hooks for module in model.modules())
    with pytest.raises(tt.CaptureError, match="closed"):
        w.pause()


@pytest.mark.parametrize("pauses_first", [False, True])
def test_compiled_models_pause_too(pauses_first: bool) -> None:
    model = mlp()
    with tt.watch(model, "*:output,grad_output", to=tt.Stats()) as w:
        called = torch.compile(model, backend="aot_eager")
        if pauses_first:
            with w.pause():
                called(X).sum().backward()
        for _ in range(3):
            called(X).sum().backward()
            with w.pause():
                called(X).sum().backward()
            w.step()
    for site in ("0:output", "2:output", "0:grad_output"):
        assert w.run.over_steps(site, "num_tensors") == ([0, 1, 2], [1, 1, 1])


# --- the trainer's own numbers --------------------------------------------------------------------


@pytest.mark.parametrize("sink", [tt.Memory, tt.Stats])
def test_steps_have_the_number_of_the_trainer(sink: Any, tmp_path: Path) -> None:
    model = mlp()
    with tt.watch(model, "0", to=sink()) as w:
        for number in (1000, 1010, 1020):
            w.step(number)
            model(X + number)
        w.step()
        model(X)
    steps = [1000, 1010, 1020, 1021]
    assert w.run.steps == steps
    assert w.run.over_steps("0:output", "numel") == (steps, [16] * 4)
    again = tt.open(w.run.save(tmp_path / "run.safetensors"))
    expected = model[0](X + 1010).double().mean().item()
    assert again.stats("0:output", step=1010).mean == pytest.approx(expected, rel=1e-6)


def test_every_counts_in_the_numbers_of_the_trainer() -> None:
    model = mlp()
    with tt.watch(model, "0", every=10) as w:
        for number in range(95, 125):
            w.step(number)
            model(X)
    assert w.run.steps == [100, 110, 120]


@pytest.mark.parametrize("number", [3, 5])
def test_a_number_of_a_step_that_has_begun_is_refused(number: int) -> None:
    model = mlp()
    with tt.watch(model, "0") as w:
        w.step(5)
        model(X)
        with pytest.raises(tt.InputError, match=f"got the number {number}, and step 5 has begun"):
            w.step(number)
        model(X)  # Nothing is lost.
    assert len(w.run) == 2


def test_a_step_that_has_not_begun_may_be_named_again() -> None:
    model = mlp()
    with tt.watch(model, "0") as w:
        w.step(0)
        model(X)
        w.step(1)
        w.step(1)
        model(X)
    assert w.run.steps == [0, 1]


@pytest.mark.parametrize("number", [1.5, "7", float("nan")])
def test_a_number_that_is_not_whole_is_refused(number: Any) -> None:
    with tt.watch(mlp()) as w, pytest.raises(tt.InputError, match="expected a whole number"):
        w.step(number)


# --- what a training logs -------------------------------------------------------------------------


def test_numbers_are_kept_by_step_and_saved(tmp_path: Path) -> None:
    model = mlp()
    losses = []
    with tt.watch(model, "0", every=2) as w:
        for step in range(4):
            loss = model(X).sum() * step
            losses.append(loss.item())
            w.log(loss=loss, **{"lr/first group": 0.1 / (step + 1)})
            if step == 2:
                w.log(loss=7)
                losses[-1] = 7.0
            w.step()
    for run in (w.run, tt.open(w.run.save(tmp_path / "run.safetensors"))):
        assert run.scalar_names == ["loss", "lr/first group"]
        assert run.scalars("loss") == ([0, 1, 2, 3], losses)
        assert run.scalars("lr/first group") == ([0, 1, 2, 3], [0.1, 0.05, 0.1 / 3, 0.025])
        with pytest.raises(tt.SiteError, match="logged are loss, lr/first group"):
            run.scalars("accuracy")


def test_a_tensor_that_changes_later_is_logged_as_it_was() -> None:
    number = torch.tensor(1.0)
    with tt.watch(mlp()) as w:
        w.log(number=number)
        number.add_(1)
    assert w.run.scalars("number") == ([0], [1.0])


def test_a_later_number_counts_whatever_kind_it_has() -> None:
    with tt.watch(mlp()) as w:
        w.log(number=torch.tensor(1.0))
        w.log(number=2.0)
    assert w.run.scalars("number") == ([0], [2.0])


@pytest.mark.parametrize("value", [torch.ones(2), "high", None, torch.tensor(1j)])
def test_what_is_no_number_is_not_logged(value: Any) -> None:
    with tt.watch(mlp()) as w:
        with pytest.raises(tt.InputError, match=r"log\(\) got loss=.*; expected a number"):
            w.log(loss=value)
        assert w.run.scalar_names == []


def test_nothing_is_logged_into_a_closed_watch() -> None:
    with tt.watch(mlp()) as w:
        pass
    with pytest.raises(tt.CaptureError, match="closed"):
        w.log(loss=1.0)


# --- what the sink held before --------------------------------------------------------------------


@pytest.mark.parametrize("kind", [tt.Memory, tt.Stats])
def test_a_sink_that_holds_the_steps_of_another_watch_is_named(kind: Any) -> None:
    sink, model = kind(), mlp()
    with tt.watch(model, "0", to=sink) as first:
        model(X)
        first.step()
        model(X)
    with tt.watch(model, "0", to=sink) as second:
        second.step(1)
        model(X)
        second.step()
        model(X)
    assert first.absent == []
    (entry,) = second.absent
    assert "held values of another watch in step 1, and holds both now" in entry.reason


@pytest.mark.parametrize("kind", [tt.Memory, tt.Stats])
def test_a_sink_goes_on_with_later_steps(kind: Any) -> None:
    sink, model = kind(), mlp()
    for start in (0, 2):
        with tt.watch(model, "0", to=sink) as w:
            for step in (start, start + 1):
                w.step(step)
                model(X)
        assert w.absent == []
    assert w.run.over_steps("0:output", "num_tensors") == ([0, 1, 2, 3], [1, 1, 1, 1])


def test_a_step_of_an_optimizer_in_a_pause_is_said_to_be_in_one() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tt.watch(model, "0:step_grad,update") as w:
        model(X).sum().backward()
        with w.pause():
            optimizer.step()
        w.step()
        model(X).sum().backward()
        optimizer.step()
    assert w.run.steps == [1]
    assert {entry.reason for entry in w.absent} == {
        "no optimizer made a step with it in step 0: the watch was paused when one made it"
    }
