"""A run that another process writes while this one reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from recordings import batch, small_net
from torch import Tensor

import torchtap as tt
from torchtap.runs.store.folder_doctor import examine

pytestmark = pytest.mark.slow  # Each starts a process that imports torch.

_ROWS = 2000  # Of the second module 128,000 bytes, a lane; of the third it is small.
_WRITER = f"""
import sys, torch, torchtap as tt
from recordings import batch, small_net
net, disk = small_net(), tt.Disk(sys.argv[1])
with tt.watch(net, ["1", "2"], to=[disk, tt.Stats()]) as w:
    for step in range(12):
        net(batch(step, {_ROWS}))
        w.log(loss=float(step))
        w.step(ids=range(step, step + 3), half=step // 6)
        if step % 3 == 2:
            disk.flush()
        print(step, flush=True)
        if step % 4 == 3:
            sys.stdin.readline()
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that writes twelve steps, and waits after every fourth."""
    program = [sys.executable, "-c", _WRITER, str(tmp_path / "run")]
    with subprocess.Popen(
        program,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        yield process
        process.kill()


def wait_for(writer: subprocess.Popen[str], step: int) -> None:
    """Until a step was closed."""
    assert writer.stdout is not None
    while int(writer.stdout.readline()) < step:
        pass


def go_on(writer: subprocess.Popen[str]) -> None:
    assert writer.stdin is not None
    writer.stdin.write("\n")
    writer.stdin.flush()


def assert_whole(run: tt.Run) -> None:
    """Every step that is there is whole, and to the bit what the model computes."""
    assert run.steps == list(range(len(run.steps)))
    for step in run.steps:
        hidden = small_net()[:2](batch(step, _ROWS)).detach()
        assert torch.equal(run.get("1", step=step), hidden)
        assert torch.equal(run.get("2", step=step), small_net()[2](hidden))
        assert run.ids(step) == [step, step + 1, step + 2]
        assert run.labels(step) == {"half": step // 6}


def test_a_reader_follows_another_process(writer: subprocess.Popen[str], tmp_path: Path) -> None:
    wait_for(writer, 3)
    run = tt.open(tmp_path / "run")
    assert_whole(run)
    assert set(range(3)) <= set(run.steps) <= set(range(4))  # It was flushed after step 2.
    assert [one.state for one in examine(tmp_path / "run").attempts] == ["growing"]
    assert any("a process is writing it" in one.reason for one in run.absent)
    kept = run.get("1", step=0)
    dataset, seen = run.dataset("1"), len(run.steps)
    go_on(writer)
    wait_for(writer, 7)
    assert len(run.steps) == seen  # It changes when it is asked to.
    assert run.refresh()
    assert_whole(run)
    assert set(range(6)) <= set(run.steps)
    assert run.scalars("loss")[1][:6] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert run.over_steps("1", "numel")[0][:6] == [0, 1, 2, 3, 4, 5]
    assert len(run.dataset("1")) > len(dataset) == seen * _ROWS
    for _ in range(3):  # While it writes: what is seen is whole at any moment.
        go_on(writer)
        for _ in range(8):
            run.refresh()
            assert_whole(run)
    assert writer.wait(60) == 0
    run.refresh()  # The last look may have seen the end already.
    assert run.steps == list(range(12))
    assert_whole(run)
    assert not run.absent
    assert torch.equal(kept, small_net()[:2](batch(0, _ROWS)))
    assert not run.refresh()


def test_a_reader_keeps_what_a_process_that_was_killed_had_committed(
    writer: subprocess.Popen[str], tmp_path: Path
) -> None:
    wait_for(writer, 3)
    run = tt.open(tmp_path / "run")
    writer.kill()
    writer.wait()
    run.refresh()
    assert_whole(run)
    assert any("ended without closing it" in one.reason for one in run.absent)
    assert set(range(3)) <= set(run.steps)
    assert [one.state for one in examine(tmp_path / "run").attempts] == ["ended"]
    value: Tensor = tt.open(tmp_path / "run")["2"]
    assert torch.equal(value, run["2"])
