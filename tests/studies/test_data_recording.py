"""``tt.record``: a whole data set, by one process or several, whatever stops it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from bits import content
from PIL import Image
from recordings import exact, small_net
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import torchtap as tt
from killed import die, killed_in
from ranks import run_file
from torchtap.cli import app as cli

SAMPLES = exact((50, 8), torch.Generator().manual_seed(0))


class Endless(IterableDataset[int]):
    """A data set without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter([])


class StopsAt(Dataset[Tensor]):
    """Raises at one sample, as a person who presses Ctrl-C."""

    def __init__(self, place: int) -> None:
        self.place = place

    def __len__(self) -> int:
        return len(SAMPLES)

    def __getitem__(self, place: int) -> Tensor:
        if place == self.place:
            raise KeyboardInterrupt
        return SAMPLES[place]


def expected(batch_size: int = 7) -> dict[int, Any]:
    """Step -> what the second module returns, computed without torchtap."""
    net = small_net()
    with torch.no_grad():
        return {n: content(net[:2](part)) for n, part in enumerate(SAMPLES.split(batch_size))}


def check(run: tt.Run) -> None:
    """Every sample is there once, in its step, with its id."""
    # The last batch has one sample, so of two ranks one has none of it.
    known = ("those of the later one count", "rank 0 has none in step 7")
    lost = [one.reason for one in run.absent if not any(why in one.reason for why in known)]
    assert lost == []
    right = expected()
    assert run.steps == list(right)
    assert {step: content(run.cat("1", steps=step)) for step in run.steps} == right
    assert [one for step in run.steps for one in run.ids(step)] == list(range(len(SAMPLES)))


@pytest.mark.parametrize("workers", [0, 2])
def test_every_sample_is_recorded_once(tmp_path: Path, workers: int) -> None:
    data = TensorDataset(SAMPLES)
    check(tt.record(small_net(), data, "1", to=tmp_path / "run", batch_size=7, workers=workers))


def test_a_loader_gives_its_settings(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(SAMPLES, torch.zeros(50)), batch_size=7)
    check(tt.record(small_net(), loader, "1", to=tt.Disk(tmp_path / "run")))


def test_batches_that_are_dicts_are_keywords(tmp_path: Path) -> None:
    class Named(nn.Module):
        def forward(self, *, x: Tensor) -> Tensor:
            return 2 * x

    data = [{"x": torch.tensor([float(n)])} for n in range(5)]
    run = tt.record(Named(), data, to=tmp_path / "run", batch_size=2)
    assert run.cat(".:output").flatten().tolist() == [0, 2, 4, 6, 8]


def test_the_call_may_be_anything(tmp_path: Path) -> None:
    data = TensorDataset(SAMPLES, SAMPLES)
    run = tt.record(
        nn.Bilinear(8, 8, 1), data, to=tmp_path / "run", call=lambda model, batch: model(*batch)
    )
    assert run.cat(".:output").shape == (50, 1)


@pytest.mark.parametrize("place", [0, 6, 7, 30, 49])
def test_a_stopped_recording_goes_on_where_it_was(tmp_path: Path, place: int) -> None:
    path, net = tmp_path / "run", small_net()
    with pytest.raises(KeyboardInterrupt):
        tt.record(net, StopsAt(place), "1", to=path, batch_size=7)
    reasons = [one.reason for one in tt.open(path).absent]
    assert any(f"{place // 7} of 8 batches of the data set" in reason for reason in reasons)
    check(tt.record(net, StopsAt(-1), "1", to=path, batch_size=7, resume=True))
    check(tt.record(net, StopsAt(0), "1", to=path, batch_size=7, resume=True))  # Nothing is left.


def test_a_batch_that_stops_in_the_middle_of_the_model_is_done_again(tmp_path: Path) -> None:
    path, net, calls = tmp_path / "run", small_net(), list[int]()

    def interrupt(module: nn.Module, args: Any) -> None:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt

    handle = net[2].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        tt.record(net, TensorDataset(SAMPLES), "1", to=path, batch_size=7)
    handle.remove()
    check(tt.record(net, TensorDataset(SAMPLES), "1", to=path, batch_size=7, resume=True))


def test_statistics_stand_beside_the_values(tmp_path: Path) -> None:
    data = TensorDataset(SAMPLES)
    run = tt.record(small_net(), data, "1", to=tmp_path / "run", stats=tt.Stats(), batch_size=7)
    with torch.no_grad():
        right = small_net()[:2](SAMPLES).double()
    assert run.stats("1", step="all").mean == pytest.approx(float(right.mean()), rel=1e-6)


def record_and_be_killed(path: Path, data: Any, batch: int, **how: Any) -> None:
    """Be killed in a batch, once what was recorded before it is committed."""

    def recorded() -> None:
        net, disk, number = small_net(), tt.Disk(path), list[int]()

        def kill_in_its_batch(module: nn.Module, args: Any) -> None:
            number.append(1)
            if len(number) > batch:
                disk.planned_size()  # Waits for the thread, and flushes no statistics.
                die()

        net.register_forward_pre_hook(kill_in_its_batch)
        tt.record(net, data, "1", to=disk, batch_size=1, **how)

    killed_in(recorded)


def test_statistics_that_a_kill_lost_are_measured_again(tmp_path: Path) -> None:
    path, data = tmp_path / "run", TensorDataset(SAMPLES.repeat(2, 1))
    record_and_be_killed(path, data, 70, stats=tt.Stats())
    assert len(tt.open(path).steps) == 70
    net = small_net()
    run = tt.record(net, data, "1", to=path, batch_size=1, stats=tt.Stats(), resume=True)
    with torch.no_grad():
        right = net[:2](SAMPLES.repeat(2, 1)).double().mean(1)
    steps, means = run.over_steps("1", "mean")
    assert steps == list(range(100))
    assert means == pytest.approx(right.tolist(), rel=1e-5)
    reason = "; ".join(sorted({one.reason for one in run.absent}))
    numbers = "attempt 0 was not closed: of steps 0 to .. there are the numbers, and not histograms"
    assert re.search(numbers, reason)
    assert "lost" not in reason


def test_statistics_that_are_asked_for_later_are_measured_of_all_batches(tmp_path: Path) -> None:
    path, data = tmp_path / "run", TensorDataset(SAMPLES)
    tt.record(small_net(), data, "1", to=path, batch_size=7)
    for _ in range(2):
        how = {"to": path, "batch_size": 7, "stats": tt.Stats(), "resume": True}
        run = tt.record(small_net(), data, "1", **how)  # type: ignore[arg-type]
        assert run.over_steps("1", "num_tensors") == (list(range(8)), [1] * 8)
    assert len(list(path.glob("rank-00000/attempt-*"))) == 2  # The second time nothing was left.


_RANKS = """
import os, sys, time, torch, torchtap as tt, torch.distributed as distributed
from torch import nn
distributed.init_process_group("gloo")
rank, fails = distributed.get_rank(), sys.argv[2] == "fails"

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, place):
        time.sleep(0.02 * rank)
        if fails and rank and place == 20:
            raise ValueError("mine")
        return torch.full((4,), float(place))

try:
    run = tt.record(nn.Identity(), Slow(), to=sys.argv[1] + "/run", batch_size=8)
    total = run.cat(".")[:, 0].sum().item()
    # In one write: torchrun starts ranks with python -u, and the words of two of them would mix.
    sys.stdout.write(f"rows {run.num_rows('.')} {total} {len(run.absent)}\\n")
    sys.stdout.flush()
except ValueError:
    print("raised", rank, flush=True)
distributed.barrier()
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ends", "fails"])
def test_a_rank_returns_the_run_of_all_ranks(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(_RANKS)
    said = run_file(tmp_path, script, 2, [kind])
    if kind == "ends":
        assert said.count("rows 40 780.0 0") == 2
    else:
        assert "raised 1" in said
        assert "rows 28" in said  # Two batches of both, and three of which rank 1 has none.


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (DataLoader(TensorDataset(SAMPLES), shuffle=True), "shuffles"),
        (DataLoader(TensorDataset(SAMPLES), batch_size=None), "sampler of its own"),
        (iter([1]), "has no length"),
        (Endless(), "has no length"),
    ],
    ids=["shuffled", "single", "iterator", "endless"],
)
def test_data_that_could_not_go_on_are_refused(data: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(tt.InputError, match=why):
        tt.record(small_net(), data, to=tmp_path / "run")


def test_other_data_do_not_go_on_with_a_run(tmp_path: Path) -> None:
    data = TensorDataset(SAMPLES)
    tt.record(small_net(), data, to=tmp_path / "run", batch_size=7)
    with pytest.raises(tt.InputError, match="with batch size 7, and this is to go on with 8"):
        tt.record(small_net(), data, to=tmp_path / "run", batch_size=8, resume=True)


def test_a_run_goes_on_only_with_the_weights_that_it_began_with(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).eval()
    path, data = tmp_path / "run", TensorDataset(SAMPLES)
    tt.record(net, data, "0", to=path, batch_size=7)
    tt.record(net, data, "0", to=path, batch_size=7, resume=True)
    for tensor in (net[0].weight, net[-1].running_mean):
        kept = tensor.detach().clone()
        tensor.data[0] += 1
        with pytest.raises(tt.InputError, match=r"with weights .*, and this is to go on with"):
            tt.record(net, data, "0", to=path, batch_size=7, resume=True)
        tensor.data.copy_(kept)
    tt.record(net, data, "0", to=path, batch_size=7, resume=True)


def test_statistics_that_a_recording_updates_are_no_other_weights(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        tt.record(net, StopsAt(30), "0", to=path, batch_size=10)
    tt.record(net, StopsAt(-1), "0", to=path, batch_size=10, resume=True)


def test_a_run_goes_on_only_with_the_sites_that_it_began_with(tmp_path: Path) -> None:
    data = TensorDataset(SAMPLES)
    net = small_net()
    tt.record(net, data, ["0", net[1]], to=tmp_path / "run", batch_size=7)
    tt.record(net, data, ["1", "0"], to=tmp_path / "run", batch_size=7, resume=True)
    for other in ("1", ["0", "1", "2"]):
        with pytest.raises(tt.InputError, match="with where 0, 1, and this is to go on with"):
            tt.record(net, data, other, to=tmp_path / "run", batch_size=7, resume=True)


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    net = small_net().train()
    tt.record(net, TensorDataset(SAMPLES), to=tmp_path / "run")
    assert net.training
    assert not any(module._forward_hooks for module in net.modules())
    assert all(one.grad is None for one in net.parameters())


# --- several ranks ----------------------------------------------------------------------------

_ON_RANKS = """
import sys, torch, torchtap as tt
from torch import distributed
from torch.utils.data import TensorDataset
from recordings import exact, small_net
distributed.init_process_group("gloo")
path, stop = sys.argv[1] + "/run", int(sys.argv[2])
samples = exact((50, 8), torch.Generator().manual_seed(0))

class Data(TensorDataset):
    def __getitem__(self, place):
        if place == stop:
            raise KeyboardInterrupt
        return super().__getitem__(place)

try:
    tt.record(small_net(), Data(samples), "1", to=path, batch_size=7, stats=tt.Stats(), resume=True)
except KeyboardInterrupt:
    pass
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_share_the_samples_and_go_on_together(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(_ON_RANKS)
    run_file(tmp_path, script, 2, ["30"])
    assert tt.open(tmp_path / "run").rank(0).steps == [0, 1, 2, 3]
    run_file(tmp_path, script, 2, ["-1"])
    run = tt.open(tmp_path / "run")
    check(run)
    one = tt.record(small_net(), TensorDataset(SAMPLES), "1", to=tmp_path / "one", batch_size=7)
    whole = run.stats("1", step="all")
    assert whole.numel == one.cat("1").numel()
    assert whole.l2 == pytest.approx(float(one.cat("1").double().norm()), rel=1e-6)


# --- the command ------------------------------------------------------------------------------

MODEL = f"{Path(__file__).parents[1] / 'support' / 'recordings.py'}:small_net"


def test_the_command_records_an_array(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", SAMPLES.numpy())
    words = ["record", MODEL, "--data", str(tmp_path / "x.npy"), "--batch-size", "7"]
    words += ["--where", "1", "--out", str(tmp_path / "run"), "--stats"]
    assert cli.run(words) == 0
    assert "1 site, 8 records, 8 steps" in capsys.readouterr().out
    check(tt.open(tmp_path / "run"))
    assert cli.run(words) == 2
    assert "with 1 attempt of rank 0" in capsys.readouterr().err
    assert cli.run([*words, "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_records"] == 8


def test_the_command_records_a_table(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array(SAMPLES.tolist(), pa.list_(pa.float32()))})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    words = ["record", MODEL, "1", "--data", str(tmp_path / "x.parquet"), "--batch-size", "7"]
    assert cli.run([*words, "--out", str(tmp_path / "run")]) == 0
    check(tt.open(tmp_path / "run"))


def test_the_command_records_a_folder_of_pictures(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    (tmp_path / "in" / "b").mkdir(parents=True)
    for name in ("b/2.png", "a.png", "c.jpg"):
        Image.fromarray(chance.integers(0, 255, (40, 30, 3), "uint8")).save(tmp_path / "in" / name)
    words = ["record", "torch.nn:Identity", "--data", str(tmp_path / "in"), "--size", "16"]
    assert cli.run([*words, "--batch-size", "2", "--out", str(tmp_path / "run")]) == 0
    run = tt.open(tmp_path / "run")
    assert [tuple(one.value.shape) for one in run.records()] == [(2, 3, 16, 16), (1, 3, 16, 16)]


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for data, why in [
        (str(tmp_path), "has no picture in it"),
        ("nothing", "expected a folder of pictures"),
        (str(tmp_path / "x.npy"), "There is no file"),
        ("torch.nn:Identity", "expected a data set"),
    ]:
        words = ["record", MODEL, "--data", data, "--out", str(tmp_path / "run")]
        assert cli.run(words) == 2
        assert why in capsys.readouterr().err


@pytest.mark.slow
def test_a_recording_that_is_killed_many_times_has_every_sample_once(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", SAMPLES.repeat(40, 1).numpy())
    words = ["record", MODEL, "1", "--data", str(tmp_path / "x.npy"), "--batch-size", "2"]
    words += ["--out", str(tmp_path / "run"), "--resume"]
    program = [sys.executable, "-m", "torchtap", *words]
    for number in range(8):
        process = subprocess.Popen(program, stdout=subprocess.DEVNULL, env=dict(os.environ))
        time.sleep(3 + 0.1 * number)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert subprocess.run(program, stdout=subprocess.DEVNULL).returncode == 0
    run = tt.open(tmp_path / "run")
    assert [one for step in run.steps for one in run.ids(step)] == list(range(2000))
    with torch.no_grad():
        right = torch.cat([small_net()[:2](part) for part in SAMPLES.repeat(40, 1).split(2)])
    assert content(run.cat("1")) == content(right)
