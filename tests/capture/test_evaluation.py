"""Evaluation forwards between the steps of a training are told apart from those that train."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from models import mlp
from random_numbers import normal
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchtap as tt

X = normal(4, 6, 3)


def evaluate_without_gradients(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        model(100 * X[0])
    model.train()


def evaluate_in_inference_mode(model: nn.Module) -> None:
    model.eval()
    with torch.inference_mode():
        model(100 * X[0])
    model.train()


def evaluate_in_eval_mode_alone(model: nn.Module) -> None:
    model.eval()
    model(100 * X[0])
    model.train()


def roll_out(model: nn.Module) -> None:
    with torch.no_grad():
        model(100 * X[0])


EVALUATIONS = [
    evaluate_without_gradients,
    evaluate_in_inference_mode,
    evaluate_in_eval_mode_alone,
    roll_out,
]
Evaluate = Callable[[nn.Module], None]


def train(model: nn.Module, w: tt.Watch, evaluate: Evaluate | None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for k in range(3):
        optimizer.zero_grad()
        model(X[k]).square().sum().backward()
        optimizer.step()
        w.step()
        if evaluate is not None:
            evaluate(model)


@pytest.mark.parametrize("evaluate", EVALUATIONS)
@pytest.mark.parametrize("sink", [tt.Memory, lambda: tt.Stats(exact=True)])
def test_statistics_are_those_of_a_training_without_evaluation(
    evaluate: Evaluate, sink: Callable[[], tt.Memory | tt.Stats]
) -> None:
    runs = []
    for between in None, evaluate:
        model = mlp()
        with tt.watch(model, "*:input,output,grad_output,update", to=sink()) as w:
            train(model, w, between)
        runs.append(w.run)
    plain, mixed = runs
    assert plain.sites == mixed.sites
    for site in plain.sites:
        assert plain.over_steps(site, "l2") == mixed.over_steps(site, "l2"), site
        assert plain.over_steps(site, "numel") == mixed.over_steps(site, "numel"), site


@pytest.mark.parametrize("evaluate", EVALUATIONS)
def test_values_of_evaluations_are_kept_in_a_phase_of_their_own(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    model = mlp()
    with tt.watch(model, "*:output,grad_output") as w:
        train(model, w, evaluate)
        found = w.run.get("0:output", phase="eval", step=3)
        assert torch.equal(found, model[0](100 * X[0]).detach())
    assert len(list(w.run.records("*:output", phase="eval"))) == 12
    assert "12 records of evaluation, in phase='eval'" in repr(w.run)
    again = tt.open(w.run.save(tmp_path / "run.safetensors"))
    assert torch.equal(again.get("0:output", phase="eval", step=3), found)
    assert "12 records of evaluation" in repr(again)


@pytest.mark.parametrize("compiles", [False, True])
def test_evaluations_are_measured_apart(tmp_path: Path, compiles: bool) -> None:
    model = mlp()
    first: Any = model[0]
    called = torch.compile(model, backend="aot_eager") if compiles else model
    largest = tt.stats.top_k(1)
    with tt.watch(model, "0:output", to=tt.Stats(statistics=[largest])) as w:
        called(X[0]).sum().backward()
        with torch.no_grad():
            called(10 * X[1])
            called(20 * X[2])
            inputs = torch.cat([10 * X[1], 20 * X[2]])
            expected = (inputs @ first.weight.T + first.bias).double()
        w.step()
        called(X[0]).sum().backward()
    runs = [w.run, tt.open(w.run.save(tmp_path / "run.safetensors"))]
    for run in runs:
        found = run.stats("0:output", phase="eval")
        assert (found.numel, found.num_tensors) == (expected.numel(), 2)
        assert found.mean == pytest.approx(expected.mean().item())
        assert abs(found.extra["top_k"][0].value) == pytest.approx(expected.abs().max().item())
        assert run.over_steps("0:output", "absmax", phase="eval")[0] == [0]
        row = run.table(phase="eval", columns=["numel"]).rows[0]
        assert row.stats.numel == expected.numel()
        assert run.stats("0:output", step=0).numel == X[0].shape[0] * first.out_features
        assert run.stats("0:output").notes == ()
    with pytest.raises(tt.InputError, match="expected one of forward, recompute"):
        w.run.stats("0:output", phase="evaluation")


@pytest.mark.slow
@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("sink", [tt.Memory, tt.Stats])
def test_what_the_program_calls_an_evaluation_is_one(
    fresh_compiler: None, sink: Any, compiles: bool
) -> None:
    model = mlp()
    first = copy.deepcopy(model[0])
    called = torch.compile(model, backend="aot_eager") if compiles else model
    with tt.watch(model, "*:output", to=sink()) as w:
        with w.evaluating():
            called(X[1])  # Before the first training forward.
        called(X[0]).sum().backward()
        with w.evaluating():
            with torch.no_grad(), w.evaluating():
                called(X[2])
            called(X[3])  # With gradients, in training mode.
        called(X[0]).sum().backward()
    evaluated = first(X[1:]).double()
    found = w.run.stats("0:output", phase="eval")
    assert (found.num_tensors, found.numel) == (3, evaluated.numel())
    assert found.mean == pytest.approx(evaluated.mean().item())
    trained = first(X[:1]).double()
    found = w.run.stats("0:output")
    assert found.num_tensors == 2 and found.mean == pytest.approx(trained.mean().item())
    assert not w.absent


def test_a_frozen_part_that_the_program_evaluates_is_recorded_apart() -> None:
    model = mlp()
    with tt.watch(model, "0:output") as w:
        for _ in range(2):
            with torch.no_grad():
                model[0](X[0])
            with w.evaluating(), torch.no_grad():
                model[0](X[1])
            w.step()
    assert len(list(w.run.records("0:output", phase="forward"))) == 2
    assert len(list(w.run.records("0:output", phase="eval"))) == 2


@pytest.mark.parametrize("sink", [tt.Memory, tt.Stats])
@pytest.mark.parametrize("compiles", [False, True])
def test_evaluations_are_left_out_if_asked(sink: Any, compiles: bool) -> None:
    model = mlp()
    called = torch.compile(model, backend="aot_eager") if compiles else model
    where = "0:output,grad_output"
    with tt.watch(model, where, to=sink(), evaluation="skip") as w:
        called(X[0]).sum().backward()
        with torch.no_grad():
            called(X[1])
        if not compiles:
            model.eval()
            called(X[1].clone().requires_grad_()).sum().backward()
    assert list(w.run.records(phase="eval")) == []
    assert w.run.series.evaluation is None
    assert w.run.stats("0:output").num_tensors == 1
    assert w.absent == []


def test_an_evaluation_that_is_neither_kept_nor_left_out_is_refused() -> None:
    with pytest.raises(tt.InputError, match="expected 'record' or 'skip'"):
        tt.watch(mlp(), evaluation="drop")  # type: ignore[arg-type]


def test_gradients_of_evaluations_are_reported_as_missing() -> None:
    model = mlp()
    with tt.watch(model, "0:output,grad_output,grad_input") as w:
        model(X[0].clone().requires_grad_()).sum().backward()
        model.eval()
        attacked = X[1].clone().requires_grad_()
        model(attacked).sum().backward()  # An attack, as in adversarial training.
        model.train()
        model(X[2].clone().requires_grad_()).sum().backward()
    assert len(list(w.run.records("0:grad_output"))) == 2
    reasons = {str(entry.site): entry.reason for entry in w.absent}
    assert "evaluation forwards (phase 'eval')" in reasons["0:grad_output"]
    assert "evaluation forwards (phase 'eval')" in reasons["0:grad_input"]


@pytest.mark.parametrize("evaluate", EVALUATIONS)
def test_a_model_that_is_only_evaluated_is_recorded_as_it_is(evaluate: Evaluate) -> None:
    model = mlp()
    with tt.watch(model, "*:output") as w:
        for _ in range(3):
            evaluate(model)
            w.step()
    assert w.run.steps == [0, 1, 2] and len(w.run) == 12
    assert not list(w.run.records(phase="eval"))
    assert not w.absent


def test_attributions_in_eval_mode_are_recorded_as_they_are() -> None:
    model = mlp().eval()
    with tt.watch(model, "*:output,grad_output") as w:
        for _ in range(2):
            model(X[0]).sum().backward()
            with torch.no_grad():
                model(X[1])
                model[0](X[1])
    assert not list(w.run.records(phase="eval"))
    assert len(list(w.run.records("0:output"))) == 6


def test_evaluations_before_the_first_training_forward_are_reported() -> None:
    model = mlp()
    with tt.watch(model, "*:output", to=tt.Stats()) as w:
        evaluate_without_gradients(model)
        evaluate_without_gradients(model)
        train(model, w, None)
    assert w.run.stats("0:output", step=0).num_tensors == 3
    said = [entry.reason for entry in w.absent]
    assert len(said) == 1 and "after 2 evaluation forwards of the same step (0)" in said[0]


@contextmanager
def teaching(teacher: nn.Module) -> Iterator[None]:
    teacher.eval()
    with torch.no_grad():
        yield


class Distilled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher, self.frozen = mlp(), mlp(), mlp().eval()

    def forward(self, x: Tensor) -> Tensor:
        with teaching(self.teacher):
            target = self.teacher(x)
        return self.student(x) - target + self.frozen(x)


def test_what_runs_inside_a_training_forward_belongs_to_it() -> None:
    model = Distilled()
    with tt.watch(model, ["student", "teacher", "frozen"]) as w:
        for k in range(3):
            model(X[k]).sum().backward()
            w.step()
    assert len(w.run) == 9 and not list(w.run.records(phase="eval"))


def test_parts_that_never_have_gradients_are_recorded_as_they_are() -> None:
    model = nn.ModuleDict({"encoder": mlp(), "head": nn.Linear(2, 1)})
    with tt.watch(model, ["encoder*", "head"]) as w:
        for k in range(3):
            with torch.no_grad():
                code = model["encoder"](X[k])
            model["head"](code).sum().backward()
            w.step()
    assert not list(w.run.records(phase="eval")) and len(w.run) == 15


def test_a_generator_that_only_feeds_the_discriminator_is_evaluated() -> None:
    model = nn.ModuleDict({"generator": mlp(), "discriminator": nn.Linear(2, 1)})
    with tt.watch(model, "?*:output") as w:
        for k in range(2):
            model["discriminator"](model["generator"](X[k])).sum().backward()
            with torch.no_grad():
                fake = model["generator"](X[k])
            model["discriminator"](fake).sum().backward()
            w.step()
    assert len(list(w.run.records("generator:output"))) == 2
    assert len(list(w.run.records("generator:output", phase="eval"))) == 2
    assert len(list(w.run.records("discriminator:output"))) == 4


def test_a_checkpoint_around_the_whole_model_is_no_evaluation() -> None:
    model = mlp()
    with tt.watch(model, "*:output") as w:
        for k in range(2):
            model(X[k]).sum().backward()
            x = X[k].clone().requires_grad_()
            checkpoint(model, x, use_reentrant=True).sum().backward()
            w.step()
    assert not list(w.run.records(phase="eval"))
    assert len(list(w.run.records("0:output"))) == 4
    assert len(list(w.run.records("0:output", phase="recompute"))) == 2


def test_an_evaluation_that_raises_leaves_nothing_behind() -> None:
    model = mlp()
    with tt.watch(model, "*:output") as w:
        model(X[0]).sum().backward()
        with torch.no_grad(), pytest.raises(RuntimeError):
            model(torch.ones(2, 7))
        model(X[0]).sum().backward()
        assert w._engine.calls.busy == set()
    assert len(list(w.run.records("0:output"))) == 2


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("kind", ["whole", "in place", "parts"])
def test_compiled_evaluations_are_kept_apart_from_compiled_training(kind: str) -> None:
    model = mlp()
    call: Any = torch.compile(model, backend="aot_eager") if kind == "whole" else model
    for part in model if kind == "in place" else ():
        part.compile(backend="aot_eager")
    if kind == "parts":  # The model itself is not called.
        call = torch.compile(lambda x: model[2](model[1](model[0](x))), backend="aot_eager")  # type: ignore[misc]
    expected = {}
    with torch.no_grad():
        for step in (0, 2):
            expected[step] = model[0](X[step]).double().norm().item()
    with tt.watch(model, "*:output,grad_output", to=tt.Stats(exact=True)) as w:
        for step in range(3):
            if step == 1:
                model.eval()
                with torch.no_grad():
                    call(X[step])
                model.train()
            else:
                call(X[step]).sum().backward()
            w.step()
        call(X[0]).sum().backward()
        with torch.no_grad():
            call(X[1])
    for step in (0, 2):
        assert w.run.stats("0:output", step=step).l2 == pytest.approx(expected[step], rel=1e-6)
    last = w.run.stats("0:output", step=3)
    assert last.num_tensors == 1
    assert last.l2 == pytest.approx(expected[0], rel=1e-6)
    assert w.run.stats("0:grad_output", step=3).num_tensors == 1


@pytest.mark.parametrize("sink", [tt.Memory, tt.Stats])
def test_a_run_without_evaluations_says_so(sink: Any) -> None:
    model = mlp()
    with tt.watch(model, "0", to=sink()) as w:
        model(X[0])
    for read in (w.run.stats, partial(w.run.over_steps, name="mean")):
        with pytest.raises(tt.SiteError, match="Nothing was recorded in the phase 'eval'"):
            read("0:output", phase="eval")
    assert w.run.stats("0:output").num_tensors == 1
