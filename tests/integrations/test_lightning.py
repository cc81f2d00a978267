"""The callback of Lightning's ``Trainer``, in real trainings."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path
from typing import Any

import bits
import pytest
import torch
from plain_training import WHERE, assert_same, plain_hooks, samples, small_net
from torch import Tensor, nn
from torch.utils.data import DataLoader

import ranks
import torchtap as tt
from killed import die, killed_in

L: Any = pytest.importorskip("lightning.pytorch")
from torchtap.integrations import LightningWatch  # noqa: E402 - needs lightning

pytestmark = pytest.mark.filterwarnings("ignore")  # Those of other packages.
STEPS = 20
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulates": {"accumulate_grad_batches": 2, "val_check_interval": 10},
    "bf16": {"precision": "bf16-mixed"},
    "clips": {"gradient_clip_val": 0.1},
    "validates first": {"num_sanity_val_steps": 2},
}


class Fitted(L.LightningModule):  # type: ignore[misc]
    """A module with the net of these tests inside."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def training_step(self, batch: Any, number: int) -> Tensor:
        loss: Tensor = self.net(**batch)["loss"]
        self.log("loss", loss)
        self.log("mean_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("val_loss", self.net(**batch)["loss"])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 1e-2)


class Alternating(Fitted):
    """Two optimizers by hand, a backward for each, and one of them steps in every second batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, number: int) -> Any:
        one, other = self.optimizers()
        for optimizer in (one, other) if number % 2 else (one,):
            optimizer.zero_grad()
            self.manual_backward(self.net(**batch)["loss"])
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), 0.1) for part in (self.net.body[0], self.net)]


class FrozenPart(Fitted):
    """The trained part reads features of a part that never has gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(self.net.body[:2])

    def training_step(self, batch: Any, number: int) -> Tensor:
        with torch.no_grad():
            self.backbone(batch["x"])
        return super().training_step(batch, number)

    def validation_step(self, batch: Any, number: int) -> None:
        self.backbone(batch["x"])


def loader(num: int = 40, batch_size: int = 2) -> Any:
    return DataLoader(samples(num), batch_size)  # type: ignore[arg-type]


def trainer_of(folder: Path, *callbacks: Any, package: Any = L, **settings: Any) -> Any:
    how = {
        "max_steps": STEPS,
        "accelerator": "cpu",
        "devices": 1,
        "val_check_interval": 5,
        "check_val_every_n_epoch": None,
        "num_sanity_val_steps": 0,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
        "callbacks": list(callbacks),
    }
    return package.Trainer(**how | settings)


def fit(
    folder: Path, model: Any, *callbacks: Any, checkpoint: str | None = None, **settings: Any
) -> Any:
    torch.manual_seed(3)
    trainer = trainer_of(folder, *callbacks, **settings)
    trainer.fit(model, loader(), loader(6, 3), ckpt_path=checkpoint)
    return trainer


def optimizer_hooks() -> list[Any]:
    found = vars(sys.modules["torch.optim.optimizer"])
    return [list(found[f"_global_optimizer_{when}_hooks"].items()) for when in ("pre", "post")]


class RaiseAt(L.Callback):  # type: ignore[misc]
    """Raises in the middle of a training."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        if trainer.global_step == 7:
            raise self.error


# --- what is recorded -------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_every_value_is_that_of_plain_hooks(tmp_path: Path, settings: Any) -> None:
    plain = Fitted()
    with plain_hooks(plain) as values:
        fit(tmp_path, plain, **settings)
    callback = LightningWatch(WHERE)
    fit(tmp_path, Fitted(), callback, **settings)
    assert_same(callback.run, values)
    assert callback.run.steps == list(range(STEPS))
    assert not callback.watch.absent


def test_gradients_that_a_closure_computes_are_those_that_the_step_used(tmp_path: Path) -> None:
    callback = LightningWatch("*body.0:step_grad", to=tt.Stats())
    fit(tmp_path, Fitted(), callback)
    notes = callback.run.stats("net.body.0:step_grad[weight]", step=3).notes
    assert notes == ("computed inside the optimizer's step, by its closure",)


def test_numbers_go_on_after_a_checkpoint(tmp_path: Path) -> None:
    file = str(tmp_path / "checkpoint")
    fit(tmp_path, Fitted(), max_steps=10).save_checkpoint(file)
    plain = Fitted()
    with plain_hooks(plain, first=10) as values:
        fit(tmp_path, plain, checkpoint=file)
    callback = LightningWatch(WHERE)
    fit(tmp_path, Fitted(), callback, checkpoint=file)
    assert_same(callback.run, values)
    assert callback.run.steps == list(range(10, STEPS))


def test_by_hand_a_step_is_a_batch_and_has_the_number_of_the_trainer(tmp_path: Path) -> None:
    callback = LightningWatch(["*body.0", "*body.0:step_grad[bias]"])
    fit(tmp_path, Alternating(), callback, max_steps=9, val_check_interval=100)
    assert callback.run.steps == [0, 1, 3, 4, 6, 7]
    for port in ("output", "step_grad[bias]"):
        records = callback.run.records(f"net.body.0:{port}")
        number = [record.step for record in records]
        assert number == [0, 1, 1, 3, 4, 4, 6, 7, 7]


def test_validations_of_a_part_that_never_has_gradients_are_apart(tmp_path: Path) -> None:
    callback = LightningWatch("backbone.0")
    fit(tmp_path, FrozenPart(), callback, num_sanity_val_steps=1)
    trained = callback.run.records("backbone.0", phase="forward")
    assert [record.step for record in trained] == list(range(STEPS))
    assert {len(record.value) for record in callback.run.records(phase="forward")} == {2}
    validated = callback.run.records("backbone.0", phase="eval")
    assert [record.step for record in validated] == [0, 4, 4, 9, 9, 14, 14, 19, 19]


def test_what_the_module_logs_is_kept_with_its_step(tmp_path: Path) -> None:
    class Kept(L.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.losses: list[float] = []
            self.validated: list[float] = []

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            self.losses.append(float(trainer.callback_metrics["loss"]))

        def on_validation_end(self, trainer: Any, *_: Any) -> None:
            self.validated.append(float(trainer.callback_metrics["val_loss"]))

    callback, kept = LightningWatch("*body.0", to=tt.Stats()), Kept()
    trainer = fit(tmp_path, Fitted(), callback, kept, num_sanity_val_steps=2)
    run = callback.run
    assert run.scalars("loss") == (list(range(STEPS)), kept.losses)
    assert run.scalars("val_loss") == ([4, 9, 14, 19], kept.validated[1:])
    mean = float(trainer.callback_metrics["mean_loss"])
    assert run.scalars("mean_loss") == ([19], [pytest.approx(mean)])
    assert mean == pytest.approx(sum(kept.losses) / STEPS, rel=1e-5)


def test_pytorch_lightning_takes_it_too(tmp_path: Path) -> None:
    other: Any = pytest.importorskip("pytorch_lightning")

    class Other(other.LightningModule):  # type: ignore[misc]
        training_step, validation_step = Fitted.training_step, Fitted.validation_step
        configure_optimizers = Fitted.configure_optimizers

        def __init__(self) -> None:
            super().__init__()
            self.net = small_net()

    def fitted(model: Any, *callbacks: Any) -> None:
        torch.manual_seed(3)
        trainer_of(tmp_path, *callbacks, package=other).fit(model, loader(), loader(6, 3))

    plain = Other()
    with plain_hooks(plain) as values:
        fitted(plain)
    callback = LightningWatch(WHERE)
    fitted(Other(), callback)
    assert_same(callback.run, values)


def test_two_callbacks_watch_two_things(tmp_path: Path) -> None:
    one, other = LightningWatch("*body.0"), LightningWatch("*body.3", every=5)
    fit(tmp_path, Fitted(), one, other)
    assert [site.path for site in one.run.sites] == ["net.body.0"]
    assert other.run.steps == [0, 5, 10, 15]


def test_it_can_be_copied_and_pickled_before_a_training() -> None:
    for again in copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one)):
        assert type(again(LightningWatch("*"))) is LightningWatch


# --- what is changed --------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_watching_changes_nothing_and_leaves_nothing(tmp_path: Path, settings: Any) -> None:
    seen = []
    for callbacks in [], [LightningWatch("*:*,param,param_grad,step_grad,update,buffer")]:
        model = Fitted()
        before = optimizer_hooks()
        trainer = fit(tmp_path, model, *callbacks, **settings)
        assert optimizer_hooks() == before
        metrics = {name: bits.bits(one) for name, one in trainer.callback_metrics.items()}
        checkpoint = trainer._checkpoint_connector.dump_checkpoint()
        facts = metrics, bits.state(model), bits.hooks(model), checkpoint["callbacks"].keys()
        seen.append(facts)
    assert seen[0] == seen[1]


# --- the end ----------------------------------------------------------------------------------


def is_clean(model: nn.Module) -> bool:
    return not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


@pytest.mark.parametrize("error", [ValueError("in the middle"), KeyboardInterrupt()], ids=repr)
def test_an_exception_ends_the_watch_and_saves_the_run(tmp_path: Path, error: Any) -> None:
    callback = LightningWatch("*body.0", path=tmp_path / "run")
    model = Fitted()
    with pytest.raises((ValueError, SystemExit)):
        fit(tmp_path, model, callback, RaiseAt(error))
    assert is_clean(model)
    assert tt.open(tmp_path / "run").steps == callback.run.steps == list(range(8))


def test_a_run_that_cannot_be_saved_hides_no_exception(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    callback = LightningWatch("*body.0", path=tmp_path / "folder")
    with pytest.raises(ValueError, match="in the middle") as raised:
        fit(tmp_path, Fitted(), callback, RaiseAt(ValueError("in the middle")))
    assert "torchtap could not save what it had recorded" in raised.value.__notes__[0]


def test_each_training_is_a_run_of_its_own(tmp_path: Path) -> None:
    callback = LightningWatch("*body.0", path=tmp_path / "run")
    fit(tmp_path, Fitted(), callback, max_steps=2)
    first = callback.run
    fit(tmp_path, Fitted(), callback, max_steps=3)
    assert first.steps == [0, 1]
    assert callback.run.steps == tt.open(tmp_path / "run").steps == [0, 1, 2]


DDP = """
import os, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
sys.path[:0] = {folders!r}
import torch, torchtap as tt
from torch import distributed
from test_lightning import Fitted, LightningWatch, samples, trainer_of
from torch.utils.data import DataLoader

callback = LightningWatch(["*body.0", "*body.0:step_grad[bias]"], path="run.safetensors")
trainer = trainer_of(
    Path("."), callback, strategy="ddp", devices=2, max_steps=4, use_distributed_sampler=False,
    num_sanity_val_steps=1, val_check_interval=2,
)
rank = trainer.global_rank
trainer.fit(
    Fitted(), DataLoader(samples()[rank::2], 2), DataLoader(samples(6)[rank::2], 3)
)
"""


@pytest.mark.slow
def test_each_rank_of_ddp_saves_its_own(tmp_path: Path) -> None:
    folders = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parent)]
    ranks.run_on_two_ranks(tmp_path, DDP.format(folders=folders))
    runs = [tt.open(tmp_path / f"run.rank{rank}.safetensors") for rank in (0, 1)]
    first: Any = small_net().body[0]
    for rank, run in enumerate(runs):
        assert run.steps == [0, 1, 2, 3]
        x = torch.stack([one["x"] for one in samples()[rank::2][:2]])
        assert torch.equal(run.get("net.body.0", step=0), first(x).detach())
        evaluated = [record.step for record in run.records("net.body.0", phase="eval")]
        assert evaluated == [0, 1, 3]
    for step in range(4):
        one, other = (run.get("net.body.0:step_grad[bias]", step=step) for run in runs)
        assert torch.equal(one, other)  # The average over both.


def test_a_validation_before_any_training_is_as_without_us(tmp_path: Path) -> None:
    callback = LightningWatch("*body.0")
    found = []
    for callbacks in ((), (callback,)):
        torch.manual_seed(0)
        trainer, model = trainer_of(tmp_path, *callbacks), Fitted()
        found += trainer.validate(model, loader(6, 3), verbose=False)
    assert found[0] == found[1]
    trainer.fit(model, loader(), loader(6, 3))
    assert callback.run.steps


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, {"accumulate_grad_batches": 2}], ids=["plain", "accumulates"]
)
def test_a_training_that_is_killed_loses_no_step_before_its_checkpoint(
    settings: Any, tmp_path: Path
) -> None:
    class DieAt(L.Callback):  # type: ignore[misc]
        def on_after_backward(self, trainer: Any, module: Any) -> None:
            if trainer.global_step == 9:
                die()

    path = tmp_path / "run"

    def trained(folder: Path, *callbacks: Any, checkpoint: str | None = None) -> None:
        saving = L.callbacks.ModelCheckpoint(folder, every_n_train_steps=4, save_top_k=-1)
        tap = LightningWatch("*body.0", to=[tt.Disk(path, resume=True), tt.Stats()])
        fit(tmp_path, Fitted(), saving, tap, *callbacks, checkpoint=checkpoint, **settings)

    killed_in(lambda: trained(tmp_path / "saved", DieAt()))
    (checkpoint,) = (tmp_path / "saved").glob("*step=8.ckpt")
    assert set(range(8)) <= set(tt.open(path).steps)
    trained(tmp_path / "on", checkpoint=str(checkpoint))
    run = tt.open(path)
    steps = run.steps
    assert steps == list(range(len(steps))) and len(steps) > 9
    assert run.over_steps("net.body.0", "num_tensors")[0] == steps
    assert " are lost" not in "; ".join(one.reason for one in run.absent)
