"""The callback of transformers' ``Trainer``, in real trainings."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import bits
import pytest
import torch
from plain_training import WHERE, assert_same, plain_hooks, samples, small_net
from torch import nn

import ranks
import torchtap as tt
from killed import die, killed_in

transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from torchtap.integrations import TrainerWatch  # noqa: E402 - needs transformers

pytestmark = pytest.mark.filterwarnings("ignore")  # Those of other packages.
STEPS = 20
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulates": {"gradient_accumulation_steps": 2},
    "bf16": {"bf16": True},
    "clips": {"max_grad_norm": 0.1},
    "checkpoints": {"gradient_checkpointing": True, "gradient_accumulation_steps": 2},
    "evaluates first": {"eval_on_start": True},
}


def trainer_of(folder: Path, *callbacks: Any, model: Any = None, **settings: Any) -> Any:
    how = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "eval_strategy": "steps",
        "eval_steps": 5,
        "logging_steps": 1,
        "save_steps": 10,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return transformers.Trainer(
        small_net() if model is None else model,
        transformers.TrainingArguments(str(folder), **how | settings),
        train_dataset=samples(),
        eval_dataset=samples(6),
        callbacks=list(callbacks),
    )


def optimizer_hooks() -> list[Any]:
    found = vars(sys.modules["torch.optim.optimizer"])
    return [list(found[f"_global_optimizer_{when}_hooks"].items()) for when in ("pre", "post")]


class RaiseAt(transformers.TrainerCallback):  # type: ignore[misc]
    """Raises in the middle of a training."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_substep_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        if state.global_step == self.step:
            raise ValueError("in the middle")


def train_and_raise(folder: Path, callback: Any, model: Any = None) -> Any:
    trainer = trainer_of(folder, callback, RaiseAt(7), model=model, gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="in the middle"):
        trainer.train()
    return trainer


# --- what is recorded -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_every_value_is_that_of_plain_hooks(tmp_path: Path, settings: Any) -> None:
    plain = trainer_of(tmp_path / "plain", **settings)
    with plain_hooks(plain.model) as values:
        plain.train()
    callback = TrainerWatch(WHERE)
    trainer_of(tmp_path / "watched", callback, **settings).train()
    assert_same(callback.run, values)
    assert callback.run.steps == list(range(STEPS))
    assert not callback.watch.absent


@pytest.mark.slow
def test_numbers_go_on_after_a_checkpoint(tmp_path: Path) -> None:
    trainer_of(tmp_path).train()
    checkpoint = str(tmp_path / "checkpoint-10")
    plain = trainer_of(tmp_path / "plain")
    with plain_hooks(plain.model, first=10) as values:
        plain.train(resume_from_checkpoint=checkpoint)
    callback = TrainerWatch(WHERE)
    trainer_of(tmp_path / "watched", callback).train(resume_from_checkpoint=checkpoint)
    assert_same(callback.run, values)
    assert callback.run.steps == list(range(10, STEPS))


def test_every_counts_in_the_numbers_of_the_trainer(tmp_path: Path) -> None:
    callback = TrainerWatch("body.0", every=4, to=tt.Stats())
    trainer_of(tmp_path, callback).train()
    assert callback.run.over_steps("body.0", "num_tensors") == ([0, 4, 8, 12, 16], [1] * 5)


def test_what_the_trainer_logs_is_kept_with_its_step(tmp_path: Path) -> None:
    callback = TrainerWatch("body.0", to=tt.Stats())
    trainer = trainer_of(tmp_path, callback)
    trainer.train()
    for name in ("loss", "grad_norm", "learning_rate", "eval_loss", "train_runtime"):
        logged = {row["step"] - 1: row[name] for row in trainer.state.log_history if name in row}
        assert callback.run.scalars(name) == (list(logged), list(logged.values()))


def test_what_is_logged_and_is_no_number_is_left_out(tmp_path: Path) -> None:
    class Logs(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *args: Any, **about: Any) -> None:
            trainer.log({"text": "no number", "flag": True, "one": 1.5, "two": 2})

    callback = TrainerWatch("body.0")
    trainer = trainer_of(tmp_path, callback, Logs(), max_steps=2)
    trainer.train()
    assert callback.run.scalars("one") == ([0, 1], [1.5, 1.5])
    assert callback.run.scalars("two") == ([0, 1], [2.0, 2.0])
    for name in ("text", "flag"):
        with pytest.raises(tt.SiteError, match=f"No number '{name}' was logged"):
            callback.run.scalars(name)


def test_evaluations_are_left_out_if_asked(tmp_path: Path) -> None:
    callback = TrainerWatch("body.0", evaluation="skip")
    trainer_of(tmp_path, callback, eval_on_start=True).train()
    assert len(list(callback.run.records(phase="forward"))) == STEPS
    assert not list(callback.run.records(phase="eval"))


@pytest.mark.slow
def test_a_compiled_training_is_watched(tmp_path: Path, fresh_compiler: None) -> None:
    def model() -> nn.Module:
        net = small_net()
        net.body[2] = nn.Identity()  # A compiled dropout draws other numbers.
        return net

    settings = {"eval_on_start": True, "gradient_accumulation_steps": 2}
    plain = trainer_of(tmp_path / "plain", model=model(), **settings)
    with plain_hooks(plain.model) as values:
        plain.train()
    callback = TrainerWatch([WHERE, "!*:param_grad"], to=tt.Stats())
    trainer = trainer_of(
        tmp_path / "watched", callback, model=model(), torch_compile=True, **settings
    )
    trainer.train()
    assert type(trainer.model_wrapped).__name__ == "OptimizedModule"
    for (phase, site, step), tensors in values.found.items():
        if ":param_grad" in site:  # Statistics have the last one of an accumulation.
            continue
        found = callback.run.stats(site, phase=phase, step=step)
        assert found.num_tensors == len(tensors), (phase, site, step)
        whole = torch.cat([one.flatten() for one in tensors]).double()
        assert found.l2 == pytest.approx(whole.norm().item(), rel=1e-3, abs=1e-5)


# --- what is changed --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_watching_changes_nothing_and_leaves_nothing(tmp_path: Path, settings: Any) -> None:
    seen = []
    for callbacks in [], [TrainerWatch("*:*,param,param_grad,step_grad,update,buffer")]:
        trainer = trainer_of(tmp_path, *callbacks, **settings)
        before = bits.hooks(trainer.model), optimizer_hooks()
        trainer.train()
        assert before == (bits.hooks(trainer.model) | _new(trainer, before[0]), optimizer_hooks())
        rows = [
            {name: one for name, one in row.items() if "second" not in name and "time" not in name}
            for row in trainer.state.log_history
        ]
        seen.append((rows, bits.state(trainer.model)))
    assert seen[0] == seen[1]


def _new(trainer: Any, before: dict[str, Any]) -> dict[str, Any]:
    """Attributes that Accelerate leaves on the model."""
    return {name: found for name, found in before.items() if name.startswith("attributes of")}


# --- the end ----------------------------------------------------------------------------------


def is_clean(model: nn.Module) -> bool:
    return not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


def test_an_exception_ends_the_watch_of_a_with(tmp_path: Path) -> None:
    file = tmp_path / "run.safetensors"
    model = small_net()
    with (
        pytest.raises(ValueError, match="in the middle"),
        TrainerWatch("body.0", path=file) as callback,
    ):
        trainer_of(
            tmp_path, callback, RaiseAt(7), model=model, gradient_accumulation_steps=2
        ).train()
    assert is_clean(model)
    assert tt.open(file).steps == callback.run.steps == list(range(8))


@pytest.mark.slow
def test_after_an_exception_the_next_training_is_another_run(tmp_path: Path) -> None:
    callback = TrainerWatch("body.0", path=tmp_path / "run.safetensors")
    model = small_net()
    train_and_raise(tmp_path, callback, model)
    assert not is_clean(model)
    broken = callback.watch
    other = trainer_of(tmp_path, callback, max_steps=3)
    other.train()
    assert is_clean(model) and is_clean(other.model)
    assert broken.run.steps == list(range(8))
    assert tt.open(tmp_path / "run.safetensors").steps == callback.run.steps == [0, 1, 2]


@pytest.mark.slow
def test_after_an_exception_a_callback_that_nobody_holds_is_closed(tmp_path: Path) -> None:
    model = small_net()
    trainer = train_and_raise(
        tmp_path, TrainerWatch("body.0", path=tmp_path / "run.safetensors"), model
    )
    assert not is_clean(model)
    del trainer
    gc.collect()
    assert is_clean(model)
    assert tt.open(tmp_path / "run.safetensors").steps == list(range(8))


@pytest.mark.slow
def test_a_program_that_an_exception_ends_saves_its_run(tmp_path: Path) -> None:
    program = f"""
import sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = [{str(Path(__file__).parents[1] / "support")!r}, {str(Path(__file__).parent)!r}]
from pathlib import Path
from test_trainer import RaiseAt, TrainerWatch, trainer_of
tap = TrainerWatch("body.0", path="run.safetensors")
trainer_of(Path("."), tap, RaiseAt(7), gradient_accumulation_steps=2).train()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "ValueError: in the middle" in done.stderr
    assert tt.open(tmp_path / "run.safetensors").steps == list(range(8))


def test_closing_it_in_the_middle_ends_nothing_but_the_watch(tmp_path: Path) -> None:
    class CloseAt(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            if state.global_step == 5:
                callback.close()

    callback = TrainerWatch("body.0")
    trainer = trainer_of(tmp_path, callback, CloseAt())
    trainer.train()
    assert trainer.state.global_step == STEPS
    assert callback.run.steps == list(range(5)) and is_clean(trainer.model)


@pytest.mark.slow
def test_a_sink_that_keeps_nothing_cannot_be_saved_and_says_so_before(tmp_path: Path) -> None:
    model = small_net()
    callback = TrainerWatch("body.0", to=lambda record: None, path=tmp_path / "run.safetensors")
    with pytest.raises(tt.CaptureError, match=r"keeps none. Add tt.Memory\(\) or tt.Stats\(\)"):
        trainer_of(tmp_path, callback, model=model).train()
    assert is_clean(model)


def test_without_a_training_there_is_nothing_to_read() -> None:
    callback = TrainerWatch()
    callback.close()
    with pytest.raises(tt.CaptureError, match="TrainerWatch has seen no training yet"):
        _ = callback.run


@pytest.mark.slow
def test_a_run_that_cannot_be_saved_hides_no_exception(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with (
        pytest.raises(ValueError, match="in the middle") as raised,
        TrainerWatch("body.0", path=tmp_path / "folder") as callback,
    ):
        trainer_of(tmp_path, callback, RaiseAt(7), gradient_accumulation_steps=2).train()
    assert "torchtap could not save what it had recorded" in raised.value.__notes__[0]


DDP = """
import os, sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = {folders!r}
from pathlib import Path
import torch, torchtap as tt
from torch import distributed
from test_trainer import TrainerWatch, trainer_of

tap = TrainerWatch(["body.0", "body.0:step_grad[bias]"], path="run.safetensors")
trainer = trainer_of(Path("."), tap, max_steps=4, ddp_backend="gloo")
rank = trainer.args.process_index
trainer.train()
assert type(trainer.model_wrapped).__name__ == "DistributedDataParallel"
"""


@pytest.mark.slow
def test_each_rank_of_ddp_saves_its_own(tmp_path: Path) -> None:
    folders = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parent)]
    ranks.run_on_two_ranks(tmp_path, DDP.format(folders=folders))
    runs = [tt.open(tmp_path / f"run.rank{rank}.safetensors") for rank in (0, 1)]
    assert [run.steps for run in runs] == [[0, 1, 2, 3]] * 2
    for step in range(4):
        one, other = (run.get("body.0:step_grad[bias]", step=step) for run in runs)
        assert torch.equal(one, other)  # The average over both.
        one, other = (run.get("body.0", step=step) for run in runs)
        assert not torch.equal(one, other)  # Each has its own samples.


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_a_training_that_is_killed_loses_no_step_before_its_checkpoint(
    strategy: str, tmp_path: Path
) -> None:
    class DieAt(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            if state.global_step == 15:
                die()

    how = {"save_steps": 6, "save_strategy": strategy, "num_train_epochs": 1}
    how |= {"per_device_train_batch_size": 4} if strategy == "epoch" else {}
    path = tmp_path / "run"

    def tap() -> Any:
        sinks = [tt.Disk(path, resume=True), tt.Stats()]
        return TrainerWatch("body.0:output,step_grad", to=sinks)

    killed_in(lambda: trainer_of(tmp_path / "saved", tap(), DieAt(), **how).train())
    checkpoint = max((tmp_path / "saved").glob("checkpoint-*"), key=lambda one: int(one.name[11:]))
    first = int(checkpoint.name[11:])
    assert set(range(first)) <= set(tt.open(path).steps)
    callback = tap()
    trainer_of(tmp_path / "on", callback, **how).train(resume_from_checkpoint=str(checkpoint))
    run = tt.open(path)
    assert run.steps == list(range(STEPS))
    assert run.over_steps("body.0", "num_tensors")[0] == run.steps
    assert " are lost" not in "; ".join(one.reason for one in run.absent)
