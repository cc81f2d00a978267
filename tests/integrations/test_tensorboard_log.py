"""Statistics in TensorBoard: what its own reader finds is what a plain hook saw."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchtap as tt
from torchtap.cli.app import run as torchtap
from torchtap.integrations.logged_step import LoggedStep
from torchtap.integrations.statistics_log import StatisticsLog
from torchtap.runs.about import About
from torchtap.runs.meta import Meta

pytest.importorskip("tensorboard", reason="tensorboard is not installed")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from torchtap.integrations.tensorboard_log import TensorBoardLog

Series = dict[str, list[tuple[int, float]]]
WHERE = "*:output,grad_output,param,update"
SKIPPED, BAD = 2, 4
"""Step in which the optimizer makes no step, and step whose batch is NaN."""


def scalars_in(folder: Path) -> Series:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(one.step, one.value) for one in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def histograms_in(folder: Path) -> dict[str, list[Any]]:
    found = EventAccumulator(str(folder), size_guidance={"histograms": 0}).Reload()
    return {tag: found.Histograms(tag) for tag in found.Tags()["histograms"]}


def alike(one: Series, other: Series) -> bool:
    """Equal, and NaN equal to NaN."""
    return one.keys() == other.keys() and all(
        np.array_equal(np.array(one[tag]), np.array(other[tag]), equal_nan=True) for tag in one
    )


def train(*sinks: Any, steps: int = 6, plain: Callable[[Tensor], None] | None = None) -> tt.Run:
    """A training with steps 10, 20, ..., an evaluation after each, and a batch of NaN."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if plain is not None:
        model[0].register_forward_hook(lambda _m, _i, out: plain(out.detach().clone()))
    with tt.watch(model, WHERE, to=[tt.Stats(), *sinks]) as w:
        for number in range(steps):
            w.step(10 * number)
            x = torch.randn(16, 8) * (math.nan if number == BAD else 1)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if number not in (SKIPPED, BAD):
                optimizer.step()
            w.log(loss=loss, lr=math.inf)
            with torch.no_grad():
                model(torch.ones(2, 8))
    return w.run


def test_the_reader_of_tensorboard_finds_what_a_plain_hook_saw(tmp_path: Path) -> None:
    seen: list[Tensor] = []
    train(TensorBoardLog(tmp_path, names=["mean", "std", "absmax"]), plain=seen.append)
    found = scalars_in(tmp_path)
    for place, prefix in ((0, ""), (1, "eval/")):  # Of a training and an evaluation forward.
        own = [one.double() for one in seen[place::2]]
        for name, of in (
            ("mean", lambda x: x.mean()),
            ("std", lambda x: x.std(correction=0)),
            ("absmax", lambda x: x.abs().max()),
        ):
            steps, values = zip(*found[f"{prefix}{name}/0:output"], strict=True)
            assert steps == (0, 10, 20, 30, 40, 50)
            np.testing.assert_allclose(values, [of(x).item() for x in own], rtol=1e-6)


def test_a_finished_run_gives_the_same_series_as_the_training(tmp_path: Path) -> None:
    run = train(TensorBoardLog(tmp_path / "live", histograms=20))
    assert TensorBoardLog(tmp_path / "later", histograms=20).write(run) == 6
    live = scalars_in(tmp_path / "live")
    assert alike(live, scalars_in(tmp_path / "later"))
    assert [step for step, _ in live["update_ratio/0:update[weight]"]] == [0, 10, 30, 50]
    assert not any(tag.startswith("update_ratio/0:output") for tag in live)  # There is none.
    one, other = (histograms_in(tmp_path / name) for name in ("live", "later"))
    assert {tag: [(e.step, e.histogram_value) for e in own] for tag, own in one.items()} == {
        tag: [(e.step, e.histogram_value) for e in own] for tag, own in other.items()
    }


def test_torchtap_export_writes_the_same_and_never_into_a_folder_in_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(TensorBoardLog(tmp_path / "live"))
    saved, out = str(run.save(tmp_path / "run.safetensors")), str(tmp_path / "out")
    assert torchtap(["export", saved, "--to", "tensorboard", "-o", out]) == 0
    assert alike(scalars_in(tmp_path / "live"), scalars_in(tmp_path / "out"))
    assert torchtap(["export", saved, "--to", "tensorboard", "-o", out]) == 2
    assert "is not empty" in capsys.readouterr().err
    words = ["--every", "20", "--names", "l2", "-o", str(tmp_path / "few"), "0:output"]
    assert torchtap(["export", saved, "--to", "tensorboard", *words]) == 0
    few = scalars_in(tmp_path / "few")
    assert {*few} == {"l2/0:output", "eval/l2/0:output", "loss", "lr"}
    assert [step for step, _ in few["l2/0:output"]] == [0, 20, 40]
    assert len(few["loss"]) == 6  # Logged numbers are of all steps.


def test_what_is_not_finite_is_said_as_such_and_counted(tmp_path: Path) -> None:
    train(TensorBoardLog(tmp_path))
    found = scalars_in(tmp_path)
    mean, bad = dict(found["mean/0:output"]), dict(found["nonfinite/0:output"])
    assert [step for step, value in mean.items() if math.isnan(value)] == [10 * BAD]
    assert bad[10 * BAD] == 16 * 32 and bad[0] == 0
    assert math.isnan(dict(found["loss"])[10 * BAD])
    assert set(dict(found["lr"]).values()) == {math.inf}


def test_every_so_many_steps_and_the_rest_at_the_end(tmp_path: Path) -> None:
    train(TensorBoardLog(tmp_path, every=20, names="std"))
    found = scalars_in(tmp_path)
    assert [step for step, _ in found["std/0:output"]] == [0, 20, 40]
    assert [step for step, _ in found["loss"]] == [0, 10, 20, 30, 40, 50]


def test_a_histogram_has_the_elements_in_cells(tmp_path: Path) -> None:
    relu, x = nn.ReLU(), torch.linspace(-1, 3, 4001, dtype=torch.float64)
    with tt.watch(relu, to=[tt.Stats(), TensorBoardLog(tmp_path)]):
        relu(x)
    (event,) = histograms_in(tmp_path)["histogram/.:output"]
    found, truth = event.histogram_value, x.relu().numpy()
    assert (found.min, found.max, found.num) == (0, 3, 4001)
    assert found.sum == pytest.approx(truth.sum()) and found.sum_squares == pytest.approx(
        np.square(truth).sum()
    )
    # Each element is at most 1/33 of itself from where it is counted.
    ends = np.array(found.bucket_limit)
    below = np.cumsum(found.bucket)
    for end, count in zip(ends, below, strict=True):
        assert (truth < end * 32 / 33).sum() <= count <= (truth <= end * 34 / 33 + 1e-9).sum()


def test_a_writer_of_the_users_stays_open_and_takes_the_same(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "own")) as writer:
        run = train(TensorBoardLog(writer, histograms=0))
        writer.add_scalar("mine", 7.0, 3)
    found = scalars_in(tmp_path / "own")
    assert found.pop("mine") == [(3, 7.0)]
    TensorBoardLog(tmp_path / "later", histograms=0).write(run)
    assert alike(found, scalars_in(tmp_path / "later"))
    closed = SummaryWriter(str(tmp_path / "closed"))
    closed.close()  # It opens a file anew where something is added.
    TensorBoardLog(closed, histograms=0).write(run)
    assert alike(found, scalars_in(tmp_path / "closed"))


def test_a_run_of_values_is_written_too_and_each_rank_has_a_folder(tmp_path: Path) -> None:
    relu = nn.ReLU()
    with tt.watch(relu, to=tt.Memory()) as w:
        for scale in (1.0, 2.0):
            relu(torch.tensor([-1.0, scale]))
            w.step()
    TensorBoardLog(tmp_path / "values", names="l1").write(w.run)
    assert scalars_in(tmp_path / "values") == {"l1/.:output": [(0, 1.0), (1, 2.0)]}
    log, meta = TensorBoardLog(tmp_path), replace(Meta(), rank=1, world_size=2)
    log.begin(About(meta=lambda: meta, series=tt.Stats().measured))
    log.close()
    assert list((tmp_path / "rank1").iterdir())


class Failing(StatisticsLog):
    """A logger whose disk is full after the first step."""

    def __init__(self) -> None:
        super().__init__(["std"], 1, 0)
        self.steps: list[int] = []
        self.ended = 0

    def _open(self, rank: int | None) -> None:
        pass

    def _hand_on_step(self, logged: LoggedStep) -> None:
        self.steps.append(logged.step)
        if len(self.steps) == 2:
            raise OSError("disk full")

    def _end(self) -> None:
        self.ended += 1


def test_a_logger_that_raises_is_left_out_and_the_training_goes_on() -> None:
    relu, log = nn.ReLU(), Failing()
    raised = []
    with pytest.raises(OSError, match="disk full"), tt.watch(relu, to=[tt.Stats(), log]) as w:
        for _ in range(4):
            relu(torch.ones(2))
            try:
                w.step()
            except OSError as error:
                raised.append(str(error.__notes__))
    assert len(raised) == 1 and "the torchtap sink Failing at the end of step 1" in raised[0]
    assert (log.steps, log.ended) == ([0, 1], 1)
    assert w.run.steps == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: TensorBoardLog(path, every=0), "every is 0"),
        (lambda path: TensorBoardLog(7), "TensorBoardLog got a int"),
        (lambda path: tt.watch(nn.ReLU(), to=TensorBoardLog(path)), "there is none"),
    ],
)
def test_bad_input_is_refused_before_the_training(
    make: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(tt.InputError, match=said):
        make(tmp_path)
    with pytest.raises(tt.SiteError, match="did you mean 'absmax'"):
        tt.watch(nn.ReLU(), to=[tt.Stats(), TensorBoardLog(tmp_path, names=["absmx"])])


def test_a_sink_that_takes_no_records_leaves_the_quick_way_to_the_other() -> None:
    class AtTheEnd:
        keeps = takes = False
        steps: ClassVar[list[int]] = []

        def take(self, record: tt.Record) -> None:
            raise AssertionError(record)

        def close_step(self, step: int) -> None:
            self.steps.append(step)

        def close(self) -> None:
            self.steps.append(-1)

    relu, sink = nn.ReLU(), AtTheEnd()
    with tt.watch(relu, to=[tt.Memory(), sink]) as w:
        relu(torch.ones(2))
        w.step()
    assert len(w.run) == 1 and sink.steps == [0, -1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("TensorBoardLog", "tensorboard", "tensorboard"),
        ("WandbLog", "wandb", "wandb"),
        ("MlflowLog", "mlflow", "mlflow"),
        ("AimLog", "aim", "aim"),
    ],
)
def test_without_its_package_the_error_names_the_extra(name: str, package: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{package!r}] = None  # As if it were not there.
from torchtap.integrations import {name}
from torchtap import MissingExtraError
try:
    {name}({"" if name == "MlflowLog" else "'logs'"})
except MissingExtraError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(f"pip install 'torchtap[{extra}]'.")
