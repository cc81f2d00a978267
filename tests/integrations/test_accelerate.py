"""The watch of a loop with Accelerate, in real trainings."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bits
import pytest
import torch
from plain_training import WHERE, assert_same, plain_hooks, samples, small_net
from torch import nn
from torch.utils.data import DataLoader

import ranks
import torchtap as tt
from killed import die, killed_in

accelerate: Any = pytest.importorskip("accelerate")
from torchtap.integrations import AccelerateWatch  # noqa: E402 - needs accelerate

pytestmark = pytest.mark.filterwarnings("ignore")  # Those of other packages.
BATCHES = 20


@pytest.fixture(autouse=True)
def fresh_accelerator() -> Iterator[None]:
    """Accelerate keeps one state for the process."""
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()
    yield
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()


def accelerator_of(**settings: Any) -> Any:
    return accelerate.Accelerator(cpu=True, **settings)


def train(
    accelerator: Any,
    model: nn.Module,
    optimizer: Any,
    *,
    callback: Any = None,
    clip: float | None = None,
    raise_at: int | None = None,
) -> list[float]:
    """A loop as the guide of Accelerate has it; evaluates after every tenth batch."""
    torch.manual_seed(3)
    loader = accelerator.prepare(DataLoader(samples(2 * BATCHES), 2))  # type: ignore[arg-type]
    losses = []
    for number, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            if number == raise_at:
                raise ValueError("in the middle")
            if clip is not None and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if callback is not None:
            callback.watch.log(loss=loss)
        if number % 10 == 9:
            model.eval()
            with torch.no_grad():
                model(**batch)
            model.train()
    return losses


def made(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-2)


SETTINGS: dict[str, Any] = {
    "plain": ({}, {}),
    "accumulates": ({"gradient_accumulation_steps": 2}, {}),
    "bf16": ({"mixed_precision": "bf16"}, {}),
    "clips": ({"gradient_accumulation_steps": 2}, {"clip": 0.1}),
}
every_setting = pytest.mark.parametrize(("settings", "how"), SETTINGS.values(), ids=list(SETTINGS))


# --- what is recorded -------------------------------------------------------------------------


@pytest.mark.parametrize("is_prepared", [False, True], ids=["before", "after"])
@every_setting
def test_every_value_is_that_of_plain_hooks(settings: Any, how: Any, is_prepared: bool) -> None:
    plain = small_net()
    accelerator = accelerator_of(**settings)
    with plain_hooks(plain) as values:
        train(accelerator, *accelerator.prepare(plain, made(plain)), **how)
    model = small_net()
    prepared: Any = None
    optimizer: Any = None
    if is_prepared:
        prepared, optimizer = accelerator.prepare(model, made(model))
    with AccelerateWatch(accelerator, prepared or model, WHERE) as callback:
        if not is_prepared:
            prepared, optimizer = accelerator.prepare(model, made(model))
        train(accelerator, prepared, optimizer, callback=callback, **how)
    assert_same(callback.run, values)
    assert callback.run.steps == list(range(BATCHES // accelerator.gradient_accumulation_steps))
    assert not callback.watch.absent


def test_what_is_logged_after_the_step_of_the_optimizer_belongs_to_it() -> None:
    accelerator, model = accelerator_of(gradient_accumulation_steps=2), small_net()
    with AccelerateWatch(accelerator, model, "body.0") as callback:
        losses = train(accelerator, *accelerator.prepare(model, made(model)), callback=callback)
    # Of the two batches of a step, the last one's number counts.
    assert callback.run.scalars("loss") == (list(range(BATCHES // 2)), losses[1::2])


def test_numbers_go_on_from_the_one_that_the_program_names() -> None:
    accelerator, model = accelerator_of(), small_net()
    with AccelerateWatch(accelerator, model, "body.0") as callback:
        callback.watch.step(1000)
        train(accelerator, *accelerator.prepare(model, made(model)))
    assert callback.run.steps == list(range(1000, 1000 + BATCHES))


def test_optimizers_of_one_model_that_step_together_make_one_step() -> None:
    accelerator, model = accelerator_of(), small_net()

    class Both:
        def __init__(self, *optimizers: Any) -> None:
            self.optimizers = optimizers

        def step(self) -> None:
            for one in self.optimizers:
                one.step()

        def zero_grad(self) -> None:
            for one in self.optimizers:
                one.zero_grad()

    with AccelerateWatch(accelerator, model, "body.0") as callback:
        parts = accelerator.prepare(made(model.body[0]), made(model.body[3]))
        train(accelerator, accelerator.prepare(model), Both(*parts))
    assert callback.run.steps == list(range(BATCHES))


def test_the_optimizer_of_another_model_ends_no_step() -> None:
    accelerator, model, other = accelerator_of(), small_net(), nn.Linear(4, 1)
    with AccelerateWatch(accelerator, model, "body.0") as callback:
        prepared, optimizer, others = accelerator.prepare(model, made(model), made(other))
        for number, sample in enumerate(samples(8)):
            accelerator.backward(prepared(**sample)["loss"])
            accelerator.backward(other(sample["x"]).square().sum())
            others.step()
            if number % 2:
                optimizer.step()
    assert [record.step for record in callback.run.records()] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_step_that_is_skipped_since_gradients_are_not_finite_is_one() -> None:
    accelerator, model = accelerator_of(gradient_accumulation_steps=2), small_net()
    # That of half precision on a GPU; here a real one that finds its first scales too large.
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=10**6)
    with AccelerateWatch(accelerator, model, "body.0") as callback:
        prepared, optimizer = accelerator.prepare(model, made(model))
        skipped = []
        for number, sample in enumerate(samples(16)):
            with accelerator.accumulate(prepared):
                accelerator.backward(8 * prepared(**sample)["loss"])
                optimizer.step()
                optimizer.zero_grad()
            if number % 2:
                skipped.append(optimizer.step_was_skipped)
    assert skipped[0] and not skipped[-1]
    numbers = [record.step for record in callback.run.records()]
    assert numbers == [step for step in range(8) for _ in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("is_prepared", [False, True], ids=["before", "after"])
def test_a_compiled_model_steps_too(fresh_compiler: None, is_prepared: bool) -> None:
    plugin = accelerate.utils.TorchDynamoPlugin(backend="aot_eager")
    settings = {"gradient_accumulation_steps": 2, "dynamo_plugin": plugin}
    accelerator, model = accelerator_of(**settings), small_net()
    how = {"to": tt.Stats()}
    with contextlib.ExitStack() as stack:
        if not is_prepared:
            callback = stack.enter_context(AccelerateWatch(accelerator, model, WHERE, **how))
        prepared, optimizer = accelerator.prepare(model, made(model))
        assert type(prepared).__name__ == "OptimizedModule"
        if is_prepared:
            callback = stack.enter_context(AccelerateWatch(accelerator, prepared, WHERE, **how))
        train(accelerator, prepared, optimizer)
    numbers = callback.run.over_steps("body.0:output", "num_tensors")
    assert numbers == (list(range(BATCHES // 2)), [2.0] * (BATCHES // 2))
    evaluated = callback.run.over_steps("body.0:output", "num_tensors", phase="eval")[0]
    assert evaluated == ([4, 9] if is_prepared else [5, 10])  # No forward is heard of, inside.
    used = callback.run.over_steps("body.0:step_grad[bias]", "num_tensors")
    assert used == (list(range(BATCHES // 2)), [1.0] * (BATCHES // 2))


# --- what is changed --------------------------------------------------------------------------


@every_setting
def test_watching_changes_nothing_and_leaves_nothing(settings: Any, how: Any) -> None:
    seen = []
    for is_watched in (False, True):
        accelerator, model = accelerator_of(**settings), small_net()
        prepared, optimizer = accelerator.prepare(model, made(model))
        before = bits.hooks(model), optimizer_hooks()
        where = "*:*,param,param_grad,step_grad,update,buffer"
        with AccelerateWatch(accelerator, prepared, where) if is_watched else _nothing():
            losses = train(accelerator, prepared, optimizer, **how)
        assert (bits.hooks(model), optimizer_hooks()) == before
        seen.append((losses, bits.state(model)))
    assert seen[0] == seen[1]


def _nothing() -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def optimizer_hooks() -> list[Any]:
    found = vars(sys.modules["torch.optim.optimizer"])
    return [list(found[f"_global_optimizer_{when}_hooks"].items()) for when in ("pre", "post")]


def test_a_model_that_is_saved_meanwhile_has_no_hook(tmp_path: Path) -> None:
    accelerator, model = accelerator_of(), small_net()
    with AccelerateWatch(accelerator, model, "body.0"):
        torch.save(model, tmp_path / "model")
    again = torch.load(tmp_path / "model", weights_only=False)
    assert bits.hooks(again) == bits.hooks(small_net())


# --- the end ----------------------------------------------------------------------------------


def test_an_exception_ends_the_watch_and_saves_the_run(tmp_path: Path) -> None:
    accelerator, model = accelerator_of(), small_net()
    prepared = accelerator.prepare(model, made(model))
    before = bits.hooks(model), optimizer_hooks()
    with (
        pytest.raises(ValueError, match="in the middle"),
        AccelerateWatch(accelerator, model, "body.0", path=tmp_path / "run") as callback,
    ):
        train(accelerator, *prepared, raise_at=7)
    assert (bits.hooks(model), optimizer_hooks()) == before
    assert tt.open(tmp_path / "run").steps == callback.run.steps == list(range(8))


def test_without_a_with_it_is_closed_by_hand(tmp_path: Path) -> None:
    accelerator, model = accelerator_of(), small_net()
    prepared = accelerator.prepare(model, made(model))
    before = bits.hooks(model), optimizer_hooks()
    callback = AccelerateWatch(accelerator, model, "body.0", path=tmp_path / "run")
    train(accelerator, *prepared)
    callback.close()
    callback.close()
    assert (bits.hooks(model), optimizer_hooks()) == before
    assert tt.open(tmp_path / "run").steps == list(range(BATCHES))


DDP = """
import os, sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = {folders!r}
import torch, torchtap as tt
from torch import distributed
from test_accelerate import AccelerateWatch, accelerator_of, made, samples, small_net

accelerator, model = accelerator_of(gradient_accumulation_steps=2), small_net()
rank = accelerator.process_index
where = ["body.0", "body.0:step_grad[bias]"]
prepared, optimizer = accelerator.prepare(model, made(model))
assert type(prepared).__name__ == "DistributedDataParallel"
with AccelerateWatch(accelerator, prepared, where, path="run.safetensors"):
    for sample in samples(16)[rank::2]:
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(**sample)["loss"])
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.slow
def test_each_rank_of_ddp_saves_its_own(tmp_path: Path) -> None:
    folders = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parent)]
    ranks.run_on_two_ranks(tmp_path, DDP.format(folders=folders))
    runs = [tt.open(tmp_path / f"run.rank{rank}.safetensors") for rank in (0, 1)]
    first: Any = small_net().body[0]
    for rank, run in enumerate(runs):
        assert run.steps == [0, 1, 2, 3]
        for call in (0, 1):
            x = samples(16)[rank::2][call]["x"]
            assert torch.equal(run.get("body.0", step=0, call=call), first(x).detach())
    for step in range(4):
        one, other = (run.get("body.0:step_grad[bias]", step=step) for run in runs)
        assert torch.equal(one, other)  # The average over both.


@pytest.mark.slow
def test_a_training_that_is_killed_loses_no_step_before_its_checkpoint(tmp_path: Path) -> None:
    path, saved = tmp_path / "run", tmp_path / "saved"

    def trained(first: int, last: int) -> None:
        accelerator = accelerator_of()
        model = small_net()
        model, optimizer = accelerator.prepare(model, made(model))
        sinks = [tt.Disk(path, resume=True), tt.Stats()]
        with AccelerateWatch(accelerator, model, "*body.0", to=sinks) as w:
            if first:
                accelerator.load_state(str(saved))
                w.watch.step(first)
            for step in range(first, last):
                loss = model(torch.full((2, 4), float(step)), torch.ones(2))["loss"]
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                if step % 4 == 3:
                    accelerator.save_state(str(saved))
                if step == 13:
                    die()

    killed_in(lambda: trained(0, 20))
    assert set(range(12)) <= set(tt.open(path).steps)
    trained(12, 13)
    run = tt.open(path)
    assert run.steps == list(range(13))
    assert " are lost" not in "; ".join(one.reason for one in run.absent)
