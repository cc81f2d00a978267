"""Checkpoint and run agree: what a process that is killed had recorded is there, or is named."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import content
from recordings import batch, small_net
from torch import nn

import torchtap as tt
from killed import die, killed_in
from torchtap.runs.store.attempt import AttemptWriter
from torchtap.runs.store.folder_doctor import examine

WHERE = "*:output,grad_output,param,update"
Train = Callable[[tt.Watch, int, nn.Module, torch.optim.Optimizer], None]


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    net = small_net()
    return net, torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)


def steps_of(
    w: tt.Watch, net: nn.Module, optimizer: torch.optim.Optimizer, until: int = 10**9
) -> Iterator[int]:
    """A training, step after step, before each is closed."""
    for step in range(w.current_step, until):
        net(batch(step, 40)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield step


def save(file: Path, step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    half = file.with_suffix(".part")
    torch.save({"next": step + 1, "net": net.state_dict(), "sgd": optimizer.state_dict()}, half)
    half.replace(file)


def resumed(file: Path, path: Path, **how: Any) -> tuple[tt.Watch, nn.Module, Any]:
    """A training that goes on from its checkpoint, or begins."""
    net, optimizer = made()
    w = tt.watch(net, WHERE, to=[tt.Disk(path, resume=True), tt.Stats()], **how)
    if file.exists():
        known = torch.load(file)
        net.load_state_dict(known["net"])
        optimizer.load_state_dict(known["sgd"])
        w.step(known["next"])
    return w, net, optimizer


@contextmanager
def child(action: Callable[[], None]) -> Iterator[int]:
    """A process that is killed when the block ends."""
    process = os.fork()
    if not process:
        try:
            action()
        finally:
            os._exit(1)
    try:
        yield process
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def never_commit_after(number: int) -> None:
    """From then on the thread that writes is stuck, as on a slow disk."""
    commit = AttemptWriter.commit

    def slow(self: AttemptWriter, one: Any) -> None:
        if one.number >= number:
            self.write()
            time.sleep(60)
        commit(self, one)

    AttemptWriter.commit = slow  # type: ignore[assignment, method-assign]


def train_and_die(
    path: Path, *, commits: int, steps: int, first: int = 0, measured: int = 0, **how: Any
) -> None:
    """Commit so many steps, or have so many measured ones written, train some more, be killed."""

    def train() -> None:
        never_commit_after(commits)
        net, _ = made()
        kept = how.pop("values", "*")
        disk = tt.Disk(path, values=kept, every=how.pop("kept_every", 1), resume=True)
        stride = how.pop("stride", 1)
        w = tt.watch(net, "*:output", to=[disk, tt.Stats()] if kept is None else disk, **how)
        for step in range(first, steps, stride):
            w.step(step)
            net(batch(step))
        w.step(steps)
        deadline = time.monotonic() + 30
        while len(tt.open(path).steps) < max(commits, measured) and time.monotonic() < deadline:
            time.sleep(0.01)
        die()

    killed_in(train)


def go_on(path: Path, first: int, *, steps: int = 3, **how: Any) -> tt.Run:
    net, _ = made()
    sinks: list[Any] = [tt.Disk(path, values=how.pop("values", "*"), resume=True)]
    sinks += [tt.Stats()] if how.pop("measured", False) else []
    with tt.watch(net, "*:output", to=sinks, **how) as w:
        w.step(first)
        for step in range(first, first + steps):
            net(batch(step))
            w.step()
    return tt.open(path)


def said(run: tt.Run) -> str:
    return "; ".join(entry.reason for entry in run.absent)


def problems(path: Path) -> str:
    return "; ".join(why for one in examine(path).attempts for why in one.problems)


def notes(path: Path) -> str:
    return "; ".join(why for one in examine(path).attempts for why in one.notes)


# --- killed -----------------------------------------------------------------------------------


def test_steps_that_were_lost_before_a_resume_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train_and_die(path, commits=2, steps=8)
    assert tt.open(path).steps == [0, 1]
    assert "steps 2 to 7 are lost: attempt 0 had come to step 8" in said(tt.open(path))
    assert examine(path).is_whole  # They may be recorded again.
    assert "steps 2 to 7 are lost" in notes(path)
    run = go_on(path, 8)
    assert run.steps == [0, 1, 8, 9, 10]
    reason = said(run)
    assert "steps 2 to 7 are lost" in reason
    assert "a later attempt goes on at step 8" in reason
    assert "steps 2 to 7 are lost" in problems(path)


def test_steps_that_are_recorded_again_are_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train_and_die(path, commits=2, steps=8)
    run = go_on(path, 2, steps=8)
    assert run.steps == list(range(10))
    assert not run.absent
    assert examine(path).is_whole


def test_a_part_that_is_recorded_again_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train_and_die(path, commits=2, steps=8)
    run = go_on(path, 5)
    assert "steps 2, 3, 4 are lost" in said(run).replace("2 to 4", "2, 3, 4")


def test_a_process_that_commits_nothing_loses_its_steps_by_name(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train_and_die(path, commits=0, steps=4, first=1)
    go_on(path, 4)
    assert "steps 1 to 3 are lost" in problems(path)


@pytest.mark.parametrize(
    ("how", "lost"),
    [
        ({"every": 5}, ""),
        ({"kept_every": 5}, ""),
        ({"every": lambda step: step in (0, 5, 20)}, ""),
        ({"stride": 5}, ""),
        ({"every": 2, "kept_every": 3, "commits": 1}, "step 6 is lost"),
        ({"every": 4, "commits": 1}, "steps 4, 8 are lost"),
    ],
    ids=["every", "kept every", "a function", "own numbers", "both lost", "every lost"],
)
def test_steps_that_nobody_wanted_are_no_gap(how: Any, lost: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    train_and_die(path, **{"commits": 2, "steps": 10, **how})
    run = go_on(path, 10, every=how["every"] if callable(how.get("every")) else 1, steps=12)
    assert lost in said(run)
    assert ("lost:" in said(run)) == bool(lost)
    assert problems(path) == "" or lost in problems(path)
    assert notes(path) == ""


def test_steps_between_that_nobody_recorded_are_said_of_a_whole_run(tmp_path: Path) -> None:
    path = tmp_path / "run"
    go_on(path, 0)
    run = go_on(path, 8)
    assert run.steps == [0, 1, 2, 8, 9, 10]
    assert "no attempt has steps 3 to 7" in said(run)
    assert examine(path).is_whole
    assert "no attempt has steps 3 to 7" in notes(path)


def test_statistics_that_were_lost_are_named_with_their_steps(tmp_path: Path) -> None:
    path = tmp_path / "run"
    # Rows are written every 50 steps.
    train_and_die(path, commits=0, steps=60, values=None, measured=50)
    assert "its statistics after step 49 are lost (steps 50 to 59)" in said(tt.open(path))
    assert "steps 50 to 59" in notes(path)  # They may be recorded again.
    run = go_on(path, 58, values=None, measured=True)
    assert run.over_steps("0", "numel")[0] == [*range(50), 58, 59, 60]
    assert "its statistics after step 49 are lost (steps 50 to 57)" in said(run)
    assert "its statistics after step 49 are lost (steps 50 to 57)" in problems(path)


def test_a_billion_steps_that_are_missing_take_no_memory(tmp_path: Path) -> None:
    go_on(tmp_path / "run", 0)
    run = go_on(tmp_path / "run", 10**12)
    assert f"no attempt has steps 3 to {10**12 - 1}" in said(run)


# --- sync -------------------------------------------------------------------------------------


def test_what_was_stepped_is_committed_when_sync_returns(tmp_path: Path) -> None:
    path, (net, optimizer) = tmp_path / "run", made()
    w = tt.watch(net, WHERE, to=[tt.Disk(path), tt.Stats()])
    for step in steps_of(w, net, optimizer, 9):
        w.log(loss=step)
        w.step(ids=[step])
        if step % 3 == 2:
            w.sync()
            run = tt.open(path)
            assert run.steps == list(range(step + 1))
            assert run.ids(step) == [step]
            assert run.scalars("loss")[0] == run.steps
            assert run.over_steps("0:output", "numel")[0] == run.steps
    w.close()
    w.sync()  # All is written.
    assert tt.open(path).steps == list(range(9))


def test_sync_in_a_step_commits_its_part_and_the_step_goes_on(tmp_path: Path) -> None:
    path, net = tmp_path / "run", small_net()
    w = tt.watch(net, "*:output", to=[tt.Disk(path), tt.Stats()])
    net(batch(0))
    w.log(loss=1.0)
    w.sync()
    half = tt.open(path)
    assert [str(one.site) for one in half.records()] == [
        "0:output",
        "1:output",
        "2:output",
        ".:output",
    ]
    assert half.over_steps("1", "num_tensors") == ([0], [1])
    net(batch(1))
    w.log(loss=2.0)
    w.step(ids=["one"])
    w.sync()
    assert tt.open(path).over_steps("1", "num_tensors") == ([0], [2])
    w.log(more=3.0)
    w.close()
    run = tt.open(path)
    assert run.steps == [0]
    assert [content(one.value) for one in run.records("1")] == [
        content(small_net()[:2](batch(step))) for step in (0, 1)
    ]
    assert run.over_steps("1", "num_tensors") == ([0], [2])
    assert run.scalars("loss") == ([0], [2.0])
    assert run.ids(0) == ["one"]
    assert run.scalars("more") == ([1], [3.0])


def test_numbers_that_are_logged_after_sync_are_there(tmp_path: Path) -> None:
    net = small_net()
    with tt.watch(net, "1", to=tt.Disk(tmp_path / "run")) as w:
        net(batch(0))
        w.sync()
        w.log(loss=2.0)
    assert tt.open(tmp_path / "run").scalars("loss") == ([0], [2.0])


def test_a_step_that_was_committed_in_part_and_broke_off_is_named(tmp_path: Path) -> None:
    def train() -> None:
        net = small_net()
        w = tt.watch(net, "*:output", to=tt.Disk(tmp_path / "run"))
        net(batch(0))
        w.step()
        net(batch(1))
        w.sync()
        net(batch(2))
        die()

    killed_in(train)
    run = tt.open(tmp_path / "run")
    assert run.steps == [0, 1]
    assert "step 1 was running when it was last committed" in said(run)
    assert "step 1 was running" in notes(tmp_path / "run")
    run = go_on(tmp_path / "run", 1)
    assert "was running" not in said(run)  # It was recorded again.


def test_sync_reaches_every_sink_that_has_it_and_no_other() -> None:
    class Keeps:
        keeps = False

        def __init__(self) -> None:
            self.heard: list[str] = []

        def take(self, record: tt.Record) -> None:
            self.heard.append("take")

        def close_step(self, step: int) -> None:
            self.heard.append(f"step {step}")

        def sync(self) -> None:
            self.heard.append("sync")

        def close(self) -> None:
            self.heard.append("close")

    sink, net = Keeps(), nn.Identity()
    with tt.watch(net, to=[sink, tt.Memory(), lambda record: None]) as w:
        net(batch(0))
        w.sync()
        w.step()
    assert sink.heard == ["take", "sync", "step 0", "close"]


# --- a training that saves checkpoints, and kill -9 -------------------------------------------


def train_with_checkpoints(path: Path, file: Path, *, until: int = 10**9) -> None:
    """Save every third step, before or after the step is closed, until it is killed."""
    w, net, optimizer = resumed(file, path)
    for step in steps_of(w, net, optimizer, until):
        if step % 3 == 2 and step % 2:
            w.sync()
            save(file, step, net, optimizer)
        w.step(ids=[step])
        if step % 3 == 2 and not step % 2:
            w.sync()
            save(file, step, net, optimizer)
    w.close()


def truth(steps: int) -> dict[Any, Any]:
    """The training by itself, kept in memory."""
    net, optimizer = made()
    with tt.watch(net, WHERE) as w:
        for _ in steps_of(w, net, optimizer, steps):
            w.step()
    return {(str(r.site), r.step, r.call): content(r.value) for r in w.run.records(phase=None)}


def check_killed_trainings(path: Path, file: Path, times: int, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(times):
        with child(lambda: train_with_checkpoints(path, file)):
            time.sleep(chance.uniform(0.02, 0.4))
    first = torch.load(file)["next"] if file.exists() else 0
    train_with_checkpoints(path, file, until=first + 4)
    run = tt.open(path)
    assert run.steps == list(range(first + 4))
    found = {(str(r.site), r.step, r.call): content(r.value) for r in run.records(phase=None)}
    assert found == truth(first + 4)
    assert run.over_steps("1:output", "num_tensors") == (run.steps, [1] * len(run.steps))
    for one in run.absent:
        if "lost" in one.reason:  # Killed between the sync in a step and the end of that step.
            step = re.match(r"step (\d+) was running when it was last committed", one.reason)
            assert step is not None and int(step[1]) % 6 == 5, one.reason
    assert problems(path) == ""


def test_a_training_that_checkpoints_and_is_killed_loses_nothing(tmp_path: Path) -> None:
    check_killed_trainings(tmp_path / "run", tmp_path / "checkpoint.pt", times=2, seed=0)


@pytest.mark.slow
def test_trainings_that_checkpoint_and_are_killed_forty_times_lose_nothing(tmp_path: Path) -> None:
    for seed in range(8):
        path = tmp_path / f"run{seed}"
        check_killed_trainings(path, tmp_path / f"checkpoint{seed}.pt", times=5, seed=seed)
