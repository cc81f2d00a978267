"""``w.plan`` foretells the size of a run: against the bytes that are then on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recordings import batch, files_of, small_net
from torch import nn

import torchtap as tt
from torchtap.cli import app as cli
from torchtap.core.planned_size import PlannedSize


def on_disk(path: Path) -> int:
    return sum(one.stat().st_size for one in files_of(path))


def told(w: tt.Watch) -> PlannedSize:
    (size,) = w.plan.sizes
    return size


def wide_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 900), nn.ReLU(), nn.Linear(900, 8))


NUM_STEPS = 60


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"dtype": torch.bfloat16},
        {"every": 4},
        {"pick": lambda x, record: x[:5]},
        {"max_bytes": 2_000_000},
        {"values": None},
    ],
    ids=lambda how: next(iter(how), "all"),
)
def test_the_size_said_after_some_steps_is_that_of_the_whole(
    how: dict[str, Any], every: int, tmp_path: Path
) -> None:
    """With statistics beside; of values that are large, in lanes of their own, and small."""
    net, disk = wide_net(), tt.Disk(tmp_path / "run", num_steps=NUM_STEPS, **how)
    said = None
    with tt.watch(net, "*:*,param", to=[disk, tt.Stats(keep=8)], every=every) as w:
        for step in range(NUM_STEPS):
            net(torch.randn(32, 64)).square().sum().backward()
            w.step(ids=range(32))
            said = told(w) if step == 25 else said
    assert said is not None and not said.unknown
    assert said.total_bytes == pytest.approx(on_disk(tmp_path / "run"), rel=0.06)


def test_values_alone_are_said_within_two_percent_after_one_step(tmp_path: Path) -> None:
    net, disk = wide_net(), tt.Disk(tmp_path / "run", num_steps=NUM_STEPS)
    with tt.watch(net, "*:*", to=disk) as w:
        for step in range(NUM_STEPS):
            net(torch.randn(32, 64)).square().sum().backward()
            w.step()
            if step == 0:
                said = told(w)
    assert said.total_bytes == pytest.approx(on_disk(tmp_path / "run"), rel=0.02)
    last = tt.open(tmp_path / "run")
    assert said.values_per_step == last.nbytes // NUM_STEPS


def test_parameters_are_known_before_anything_ran_and_outputs_are_not(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(64, 900), nn.BatchNorm1d(900), nn.Linear(900, 8))
    net[2].requires_grad_(False)
    trained = 65 * 900 + 2 * 900
    held = trained + 901 * 8
    disk = tt.Disk(tmp_path / "run", num_steps=20)
    with tt.watch(net, "*:param,param_grad,buffer,output", to=disk) as w:
        size = told(w)
        assert size.values_per_step == 4 * (held + trained) + 4 * 2 * 900 + 8
        assert size.total_bytes is None and size.unknown == ("output",)
        assert str(size).endswith("and output, of a size that is known once a step ran")
        assert str(size).split()[0] in repr(w.plan)
        w.step(10)  # Nothing has run still.
        assert told(w) == size
        net(torch.randn(4, 64)).sum().backward()
        w.step()
        assert told(w).unknown == ()
    before = size.values_per_step
    run = tt.open(tmp_path / "run")
    flowed = sum(one.value.nbytes for one in run.records("*:output"))
    assert run.nbytes - flowed == before


def test_all_that_is_known_before_is_the_whole(tmp_path: Path) -> None:
    net = wide_net()
    with tt.watch(net, "*:param", to=tt.Disk(tmp_path / "run", num_steps=20)) as w:
        said = told(w)
        for _ in range(20):
            net(torch.randn(4, 64))
            w.step()
    assert said.total_bytes == pytest.approx(on_disk(tmp_path / "run"), rel=0.03)


def test_what_is_not_written_is_not_counted(tmp_path: Path) -> None:
    disk = tt.Disk(tmp_path / "run", values="2:*,param", dtype=torch.float16, every=2)
    net = small_net()
    with tt.watch(net, "*:param,output", to=disk) as w:
        assert told(w).values_per_step == (16 * 3 + 3) * 2 // 2
        assert told(w).unknown == ("output",)
    with tt.watch(net, "*:param", to=tt.Memory()) as w:
        assert w.plan.sizes == ()


def test_the_budget_is_said(tmp_path: Path) -> None:
    net, disk = small_net(), tt.Disk(tmp_path / "run", max_bytes=10_000, num_steps=1000)
    with tt.watch(net, "0", to=disk) as w:
        net(batch(0))
        w.step()
        assert told(w).recorded_until_full == 10_000 // (4 * 16 * 4)
        assert "max_bytes is full after 39 such steps" in repr(w.plan)


@pytest.mark.parametrize("num_steps", [0, -1])
def test_a_number_of_steps_that_means_nothing_is_refused(num_steps: int, tmp_path: Path) -> None:
    with pytest.raises(tt.InputError, match="num_steps"):
        tt.Disk(tmp_path / "run", num_steps=num_steps)


def test_recording_a_data_set_says_how_large_it_will_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(size=(50, 8)).astype("float32"))
    out = str(tmp_path / "run")
    words = ["record", "recordings:small_net", "--data", str(tmp_path / "data.npy"), "--out", out]
    assert cli.run([*words, "--batch-size", "10"]) == 0
    said = capsys.readouterr().err
    size, unit = said.partition(" a step, ")[2].split()[:2]
    assert f"{out} takes" in said and "in 5 steps" in said
    expected = on_disk(tmp_path / "run") / {"KiB": 1024, "MiB": 1 << 20}[unit]
    assert float(size) == pytest.approx(expected, rel=0.5)
