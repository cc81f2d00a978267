"""Whatever ends the process: a step is committed, whole and to the bit, or it is absent."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import content
from recordings import batch, files_of, held, record_steps, seen, small_net
from records import record

import torchtap as tt
from torchtap.core.errors import RunError
from torchtap.runs.store.commit import Commit
from torchtap.runs.store.journal import Entry, JournalWriter
from torchtap.runs.store.layout import read_json, write_json


def start(path: Path, first: int, rows: int) -> int:
    """A process that records from a step on until it is killed; its id.

    It is forked, so that its time goes into recording and not into importing torch.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            train(path, first, rows, writer)
        finally:
            os._exit(1)  # It raised: whatever it was shows in the steps.
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert stream.read() == "began"
    return child


def train(path: Path, first: int, rows: int, began: int) -> None:
    """Record for ever."""
    net, disk = small_net(), tt.Disk(path, resume=True, queue_bytes=1 << 20)
    w = tt.watch(net, "*:output,grad_output,param", to=disk)
    os.write(began, b"began")
    os.close(began)
    for step in range(first, 10**9):
        w.step(step)
        net(batch(step, rows)).square().sum().backward()
        w.step(ids=range(step, step + 3), step=step)


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def check_every_step(run: tt.Run, rows: int) -> None:
    """Every step that is there is whole, and they are the first ones without a gap."""
    net = small_net()
    assert run.steps == list(range(len(run.steps)))
    sites = [str(site) for site in run.sites]
    by_step: dict[int, list[tt.Record]] = {step: [] for step in run.steps}
    for one in run.records():
        by_step[one.step].append(one)
    for step, found in by_step.items():
        x = batch(step, rows)
        expected = {}
        for number, module in enumerate(net):
            x = module(x).detach()
            expected[f"{number}:output"] = content(x)
        assert sorted(str(one.site) for one in found) == sorted(sites)
        for one in found:
            if str(one.site) in expected:
                assert content(one.value) == expected[str(one.site)]
        (gradient,) = (one for one in found if str(one.site) == "2:grad_output")
        assert content(gradient.value) == content(2 * x)
        assert run.labels(step) == {"step": step}
        assert run.ids(step) == [step, step + 1, step + 2]


def wait_for_a_commit(path: Path) -> None:
    run, deadline = tt.open(path), time.monotonic() + 60
    while not run.steps and time.monotonic() < deadline:
        time.sleep(0.02)
        run.refresh()


def kill_again_and_again(path: Path, times: int, seed: int) -> int:
    """Record, kill, look, go on; returns how many steps there are in the end."""
    chance, rows, first = random.Random(seed), 600, 0
    for number in range(times):
        process = start(path, first, rows)
        time.sleep(chance.uniform(0, 0.15))
        if number == times - 1 and not first:
            wait_for_a_commit(path)  # All were killed before one, on a machine that is busy.
        kill(process)
        run = tt.open(path)
        if number == times - 1:
            check_every_step(run, rows)
        else:
            assert run.steps == list(range(len(run.steps)))
            for one in run.records(steps=run.steps[first:]):
                assert one.value is not None  # Read, and compared with its checksum.
        assert len(run.steps) >= first
        first = len(run.steps)
    return first


def test_a_recording_that_is_killed_keeps_every_committed_step(tmp_path: Path) -> None:
    assert kill_again_and_again(tmp_path / "run", 3, seed=0) > 0


@pytest.mark.slow
def test_eighty_kills_lose_no_committed_step(tmp_path: Path) -> None:
    """In four runs, since the attempts of one are read again each time."""
    record_steps(tmp_path / "first", range(1))  # What is imported then is imported for all.
    found = [kill_again_and_again(tmp_path / f"run{n}", 20, seed=n) for n in range(4)]
    assert sum(found) > 400


def test_a_step_that_was_flushed_survives(tmp_path: Path) -> None:
    path = tmp_path / "run"
    child = os.fork()
    if not child:
        flush_one_step_and_hang(path)
    deadline = time.monotonic() + 30
    while not (tmp_path / "flushed").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    run = tt.open(path)
    assert run.steps == [7]
    assert content(run["1"]) == content(small_net()[:2](batch(7)))


def flush_one_step_and_hang(path: Path) -> None:
    net, disk = small_net(), tt.Disk(path)
    with tt.watch(net, "1", to=disk) as w:
        w.step(7)
        net(batch(7))
        w.step()
        disk.flush()
        (path.parent / "flushed").touch()
        time.sleep(60)
    os._exit(1)


# --- files that break off ---------------------------------------------------------------------


def crashed(path: Path, steps: int = 3, rows: int = 2) -> dict[Any, Any]:
    """A run that was never closed, and what is in it."""
    flowed = record_steps(path, range(steps), rows=rows)
    home = path / "rank-00000" / "attempt-000"
    (home / "index.safetensors").unlink()
    facts = read_json(home / "attempt.json")
    write_json(home / "attempt.json", {**facts, "state": "open"})
    return flowed


def subset_or_error(path: Path, flowed: dict[Any, Any]) -> int:
    """Open a damaged run: what is in it is right, or it says that it cannot be read.

    Returns:
        how many values are there.
    """
    try:
        run = tt.open(path)
    except (RunError, FileNotFoundError):
        return 0
    many = 0
    for step, site in product(run.steps, run.sites):
        try:
            found = list(run.records(site, steps=step, phase=None))
        except RunError:
            continue
        own = seen(found)
        assert own == {key: flowed[key] for key in own}
        many += len(own)
    return many


@pytest.mark.slow
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "crashed"])
def test_a_run_that_breaks_off_at_any_byte_shows_no_wrong_tensor(
    is_closed: bool, tmp_path: Path
) -> None:
    path, copy = tmp_path / "run", tmp_path / "copy"
    flowed = record_steps(path, range(2), rows=2) if is_closed else crashed(path, 2)
    whole = subset_or_error(path, flowed)
    assert whole == len(flowed)
    for file in files_of(path):
        for found in broken_off(path, file, copy, every_byte(file.stat().st_size), flowed):
            if file.name == "index.safetensors":
                assert found == whole  # The journal has it all.


def broken_off(
    path: Path, file: Path, copy: Path, lengths: Sequence[int], flowed: dict[Any, Any]
) -> Iterator[int]:
    """How many values there are where one file of a run breaks off after so many bytes."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    for length in sorted(lengths, reverse=True):  # One copy grows ever shorter.
        os.truncate(copy / file.relative_to(path), length)
        yield subset_or_error(copy, flowed)


def every_byte(size: int) -> list[int]:
    """Every length of a small file; of a larger one a part of them, ever others."""
    return (
        list(range(size)) if size < 200 else list(range(random.Random(size).randrange(7), size, 29))
    )


@pytest.mark.slow
def test_a_run_that_breaks_off_at_really_any_byte_shows_no_wrong_tensor(tmp_path: Path) -> None:
    path, copy = tmp_path / "run", tmp_path / "copy"
    flowed = crashed(path, 2)
    for file in files_of(path):
        found = list(broken_off(path, file, copy, range(file.stat().st_size), flowed))
        if file.name == "small.arrows":
            assert found == sorted(found, reverse=True)  # The shorter, the less there is.


def test_a_torn_journal_keeps_the_steps_before(tmp_path: Path) -> None:
    flowed = crashed(tmp_path / "run")
    journal = tmp_path / "run" / "rank-00000" / "attempt-000" / "journal.arrows"
    os.truncate(journal, journal.stat().st_size - 30)  # The ending of a stream has eight.
    run = tt.open(tmp_path / "run")
    assert run.steps == [0, 1]
    assert held(run) == {key: value for key, value in flowed.items() if key[1] < 2}


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "crashed"])
def test_a_flipped_bit_anywhere_shows_no_wrong_tensor(is_closed: bool, tmp_path: Path) -> None:
    path = tmp_path / "run"
    flowed = record_steps(path, range(2), rows=2) if is_closed else crashed(path, 2)
    chance = random.Random(0)
    for file in files_of(path):
        whole = file.read_bytes()
        for place in chance.sample(range(len(whole)), min(len(whole), 60)):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << chance.randrange(8)
            file.write_bytes(damaged)
            subset_or_error(path, flowed)
        file.write_bytes(whole)
    assert subset_or_error(path, flowed) == len(flowed)


def test_a_damaged_commit_is_a_named_loss_and_the_others_are_there(tmp_path: Path) -> None:
    flowed = crashed(tmp_path / "run")
    journal = tmp_path / "run" / "rank-00000" / "attempt-000" / "journal.arrows"
    whole = bytearray(journal.read_bytes())
    place = whole.index(b'"step": 1, "time"')
    whole[place + 8] ^= 1
    journal.write_bytes(whole)
    run = tt.open(tmp_path / "run")
    assert run.steps == [0, 2]
    assert held(run) == {key: value for key, value in flowed.items() if key[1] != 1}
    assert "journal.arrows is damaged from byte" in run.absent[-1].reason


def test_a_lane_without_its_header_is_read(tmp_path: Path) -> None:
    flowed = record_steps(tmp_path / "run", range(3), rows=3000)
    for lane in (tmp_path / "run").rglob("lanes/*"):
        with lane.open("r+b") as stream:
            stream.write(bytes(200))
    assert held(tt.open(tmp_path / "run")) == flowed


def test_a_damaged_value_is_an_error_and_the_others_are_there(tmp_path: Path) -> None:
    path = tmp_path / "run"
    record_steps(path, range(3), rows=3000)
    (lane,) = path.rglob("lanes/*0_output.safetensors")
    with lane.open("r+b") as stream:
        stream.seek(4096 + 3000 * 16 * 4 + 5)
        stream.write(b"\xff\xff")
    run = tt.open(path)
    assert run.get("0", step=0).shape == run.get("0", step=2).shape == (3000, 16)
    with pytest.raises(RunError, match="0:output in step 1, call 0, is damaged"):
        run.get("0", step=1)
    with pytest.raises(RunError, match="is damaged"):
        run.get("0", step=1)
    assert tt.open(path, verify=False).get("0", step=1).shape == (3000, 16)


def test_values_behind_the_end_of_their_file_are_a_named_loss(tmp_path: Path) -> None:
    path = tmp_path / "run"
    record_steps(path, range(3), rows=3000)
    (lane,) = path.rglob("lanes/*0_output.safetensors")
    os.truncate(lane, 4096 + 2 * 3000 * 16 * 4 - 1)
    run = tt.open(path)
    assert [one.step for one in run.records("0:output")] == [0]
    assert "and 2 of its values lie behind them" in run.absent[-1].reason


def test_a_lane_that_shrinks_under_a_reader_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "run"
    record_steps(path, range(3), rows=3000)
    run = tt.open(path)
    for lane in path.rglob("lanes/*0_output.safetensors"):
        os.truncate(lane, 5000)
    with pytest.raises(RunError, match="breaks off after 5,000 bytes"):
        run["0"]


# --- folders that are none, or mean harm ------------------------------------------------------


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is a folder and no run"):
        tt.open(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    record_steps(tmp_path / "run", range(1))
    for name in ("run.json", "rank-00000/attempt-000/attempt.json"):
        file = tmp_path / "run" / name
        text = file.read_text()
        file.write_text(text.replace('"format": 1', '"format": 2'))
        with pytest.raises(RunError, match="has format 2; this torchtap reads format 1"):
            tt.open(tmp_path / "run")
        file.write_text(text)


HARD_NAMES = [
    "..",
    "a/b",
    "../../up",
    "a\0b",
    "a\nb",
    "x" * 1000,
    "ä€😀",
    "\ud800",
    "[0]",
    "A",
    "a",
    "a:output[0]",
]


def test_modules_of_any_name_stay_inside_of_the_folder(tmp_path: Path) -> None:
    values = {name: torch.full((40_000,), float(n)) for n, name in enumerate(HARD_NAMES)}
    disk = tt.Disk(tmp_path / "in" / "run")
    for name, value in values.items():
        disk.take(record(name, value, leaf=name))
        disk.take(record(name, value[:3]))
    disk.close()
    assert all((tmp_path / "in" / "run") in file.parents for file in files_of(tmp_path))
    for path in (tmp_path / "in" / "run", tmp_path / "in" / "run" / "rank-00000"):
        run = tt.open(path)
        for name, value in values.items():
            assert content(run[tt.Site(name, "output", name)]) == content(value)
            assert content(run[tt.Site(name, "output", "")]) == content(value[:3])


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "lanes/../../x", "00000-a.txt", ""])
def test_a_journal_that_names_a_file_outside_is_refused(name: str, tmp_path: Path) -> None:
    crashed(tmp_path / "run", 1)
    journal = tmp_path / "run" / "rank-00000" / "attempt-000" / "journal.arrows"
    journal.unlink()
    (tmp_path / "secret").write_bytes(b"secret")
    writer = JournalWriter(journal)
    entry = Entry("a:output", 0, 0, "forward", -1, "[]", "uint8", "[6]", name, 0, 0, 6, 0)
    writer.append([entry], Commit(0, 0, 0.0))
    writer.stream.close()
    with pytest.raises(RunError, match="which is none of this folder"):
        tt.open(tmp_path / "run")


@pytest.mark.parametrize(
    "lie",
    [
        {"offset": -1},
        {"offset": 10**18},
        {"nbytes": 10**18, "shape": f"[{10**18}]"},
        {"nbytes": -6},
        {"nbytes": 7},
        {"shape": "[-1, -6]"},
        {"shape": "[3037000500, 3037000500, 2]"},
        {"shape": "[6"},
        {"shape": '["6"]'},
        {"dtype": "object"},
        {"dtype": "load"},
        {"labels": "{}"},
        {"site": "[1]"},
        {"site": '["a", "nowhere", ""]'},
        {"crc32": 1},
    ],
    ids=str,
)
def test_a_journal_that_lies_is_an_error_or_a_named_loss(
    lie: dict[str, Any], tmp_path: Path
) -> None:
    crashed(tmp_path / "run", 1)
    home = tmp_path / "run" / "rank-00000" / "attempt-000"
    (home / "journal.arrows").unlink()
    (home / "small.arrows").write_bytes(b"honest")
    writer = JournalWriter(home / "journal.arrows")
    entry = Entry("a:output", 0, 0, "forward", -1, "[]", "uint8", "[6]", "small.arrows", 0, 0, 6, 0)
    writer.append([entry._replace(**lie)], Commit(0, 0, 0.0))
    writer.stream.close()
    try:
        run = tt.open(tmp_path / "run")
    except RunError:
        return
    if len(run):
        with pytest.raises(RunError, match="damaged"):
            run["a"]
    else:
        assert "are lost" in run.absent[-1].reason


def test_a_lane_that_is_a_link_to_elsewhere_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    record_steps(path, range(1), rows=3000)
    (lane,) = path.rglob("lanes/*0_output.safetensors")
    shutil.move(lane, tmp_path / "elsewhere")
    lane.symlink_to(tmp_path / "elsewhere")
    run = tt.open(path)
    with pytest.raises(tt.SiteError):
        run["0"]
    assert "are lost" in run.absent[-1].reason
