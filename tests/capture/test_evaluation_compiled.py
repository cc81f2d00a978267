"""However a model is compiled and evaluated, no evaluation counts as training, nor the reverse."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from models import seeded, small
from random_numbers import normal
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchtap as tt
from torchtap.testing import Net, default_loss

Call = Callable[..., Any]
Evaluation = Callable[[nn.Module], Any]


@contextmanager
def _with(model: nn.Module, mode: Any, *, eval_mode: bool = True) -> Iterator[None]:
    model.train(not eval_mode)
    with mode:
        yield
    model.train()


EVALUATIONS: dict[str, Evaluation] = {
    "eval, no_grad": lambda model: _with(model, torch.no_grad()),
    "eval, inference_mode": lambda model: _with(model, torch.inference_mode()),
    "eval, gradients": lambda model: _with(model, torch.enable_grad()),
    "train, no_grad": lambda model: _with(model, torch.no_grad(), eval_mode=False),
}


def _by_method(model: nn.Module, backend: str) -> Call:
    model.compile(backend=backend)
    return model


def _by_function(model: nn.Module, backend: str) -> Call:
    def run(x: Tensor) -> Any:
        return model(x)

    run_it: Call = torch.compile(run, backend=backend)
    return run_it


def _by_parts(model: nn.Module, backend: str) -> Call:
    for part in model.children():
        part.compile(backend=backend)
    return model


COMPILED: dict[str, Callable[[nn.Module, str], Call]] = {
    "not": lambda model, backend: model,
    "wrapper": lambda model, backend: torch.compile(model, backend=backend),
    "method": _by_method,
    "function": _by_function,
    "parts": _by_parts,
}
SINKS: dict[str, Callable[[Path], Any]] = {
    "Stats": lambda folder: tt.Stats(),
    "Memory": lambda folder: tt.Memory(),
    "both": lambda folder: [tt.Stats(), tt.Memory()],
    "Disk": lambda folder: tt.Disk(folder / "run"),
}
Numbers = Counter[tuple[str, int, str]]
"""Phase, step and site -> elements."""


def _schedule(
    model: nn.Module, call: Call, x: Tensor, evaluation: Evaluation, step: Callable[[str], None]
) -> None:
    """Four steps: one that trains, two that also evaluate, one that only evaluates."""
    model.train()
    for work in ("train", "eval train", "train eval", "eval"):
        for one in work.split():
            step(one)
            if one == "train":
                loss = default_loss(call(x))
                assert loss is not None
                loss.backward()
            else:
                with evaluation(model):
                    call(torch.cat((x, x, x)))
        step("")


def _expected(model: nn.Module, x: Tensor, evaluation: Evaluation) -> Numbers:
    """By plain hooks on a model that is not compiled."""
    found: Numbers = Counter()
    now: list[Any] = ["", 0]
    twin = copy.deepcopy(model)
    for path, module in twin.named_modules():

        def count(module: nn.Module, args: Any, output: Any, path: str = path) -> None:
            if isinstance(output, Tensor):
                phase = "forward" if now[0] == "train" else "eval"
                found[phase, now[1], path or "."] += output.numel()

        module.register_forward_hook(count)

    def step(work: str) -> None:
        now[0] = work
        now[1] += not work

    _schedule(twin, twin, x, evaluation, step)
    return found


def _recorded(run: tt.Run, paths: set[str], sink: str) -> Numbers:
    found: Numbers = Counter()
    for phase in ("forward", "eval"):
        for path in paths:
            for step in range(4):
                site = f"{path}:output"
                if sink in ("Stats", "both"):
                    found[phase, step, path] += _measured(run, site, step, phase)
                else:
                    records = run.records(site, steps=step, phase=phase)
                    found[phase, step, path] += sum(record.value.numel() for record in records)
    return +found


def _measured(run: tt.Run, site: str, step: int, phase: str) -> int:
    try:
        return int(run.stats(site, step=step, phase=phase).numel)
    except LookupError:
        return 0


def _check(
    make: Callable[[], nn.Module],
    x: Tensor,
    how: str,
    evaluation: str,
    sink: str,
    folder: Path,
    backend: str = "aot_eager",
) -> None:
    model = make()
    expected = _expected(model, x, EVALUATIONS[evaluation])
    with tt.watch(model, "*:output", to=SINKS[sink](folder)) as w:
        call = COMPILED[how](model, backend)
        _schedule(model, call, x, EVALUATIONS[evaluation], lambda work: None if work else w.step())
    paths = {path for _, _, path in expected}
    found = _recorded(w.run, paths, sink)
    absent = {one.site.path or "." for one in w.absent}
    assert {key: n for key, n in found.items() if key[2] not in absent} == {
        key: n for key, n in expected.items() if key[2] not in absent
    }
    assert not absent & paths, w.absent


def with_dropout() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)))


FAST = [(how, evaluation, "Stats") for how in ("wrapper", "method") for evaluation in EVALUATIONS]
SLOW = [(how, evaluation, sink) for how in COMPILED for evaluation in EVALUATIONS for sink in SINKS]

_WAYS = list(itertools.product(("wrapper", "method"), EVALUATIONS))
NETWORKS = [
    (name, *_WAYS[n % len(_WAYS)], list(SINKS)[n % len(SINKS) - n // len(_WAYS)])
    for n, name in enumerate([*small(), *reversed(small())])
]
"""Two ways and sinks for each network, which takes long to compile: together all of each."""


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    ("how", "evaluation", "sink"),
    FAST + [pytest.param(*one, marks=pytest.mark.slow) for one in SLOW if one not in FAST],
)
def test_no_evaluation_of_a_compiled_model_counts_as_training(
    how: str, evaluation: str, sink: str, tmp_path: Path
) -> None:
    _check(with_dropout, normal(4, 3), how, evaluation, sink, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # Of inductor.
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_nor_one_of_a_model_that_inductor_compiled(evaluation: str, tmp_path: Path) -> None:
    _check(with_dropout, normal(4, 3), "wrapper", evaluation, "Stats", tmp_path, "inductor")


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("name", "how", "evaluation", "sink"), NETWORKS)
def test_nor_one_of_a_whole_network(
    name: str, how: str, evaluation: str, sink: str, tmp_path: Path
) -> None:
    make, inputs = small()[name]
    _check(make, inputs(), how, evaluation, sink, tmp_path)


def test_the_networks_have_every_way_and_every_sink() -> None:
    assert {(how, evaluation) for _, how, evaluation, _ in NETWORKS} == set(_WAYS)
    assert {name for name, *_ in NETWORKS} == small().keys()
    assert len(set(NETWORKS)) == len(NETWORKS) == 2 * len(small())
    assert {sink for *_, sink in NETWORKS} == set(SINKS)


@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_a_checkpoint_around_the_model_does_not_make_training_of_evaluation(
    evaluation: str, tmp_path: Path
) -> None:
    def make() -> nn.Module:
        return Net(lambda net, x: net.fc(x), fc=nn.Linear(3, 2))

    def run(model: nn.Module) -> Call:
        return lambda x: checkpoint(model, x.clone().requires_grad_(), use_reentrant=True)

    model, x = make(), normal(4, 3)
    expected = _expected(model, x, EVALUATIONS[evaluation])
    with tt.watch(model, "*:output") as w:
        _schedule(
            model, run(model), x, EVALUATIONS[evaluation], lambda work: None if work else w.step()
        )
    assert _recorded(w.run, {".", "fc"}, "Memory") == expected
