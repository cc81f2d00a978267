"""A run's process and rhythm tell whether it goes on."""

from __future__ import annotations

import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from live_runs import train, training, wait_for

import torchtap as tt
from torchtap.runs.store.layout import read_json, write_json
from torchtap.show.live.found_runs import runs_under
from torchtap.show.live.run_state import RunState, state_of


def test_a_run_is_live_until_it_is_closed(tmp_path: Path) -> None:
    w = train(tmp_path / "run", 5, is_closed=False)
    assert state_of(tmp_path / "run").name == "live"
    assert state_of(tmp_path / "run").step == 5
    w.close()
    assert state_of(tmp_path / "run") == RunState("done", "it was closed", 5)
    file = tt.open(tmp_path / "run").save(tmp_path / "run.safetensors")
    assert state_of(file).name == "done"
    with pytest.raises(FileNotFoundError):
        state_of(tmp_path / "nothing")


def test_silence_is_measured_by_the_rhythm_of_the_run(tmp_path: Path) -> None:
    w = train(tmp_path / "run", 3, is_closed=False)
    try:
        last = time.time()
        slow = [last - 100, last - 50, last]  # A step takes 50 s: 10 of them may pass, and 3 gaps.
        quick = [last - 1, last - 0.5, last]
        for times, silence, name in (
            (quick, 9, "live"),  # Ten seconds never mean anything.
            (quick, 12, "stalled"),
            (slow, 400, "live"),
            (slow, 510, "stalled"),
            ([last - 90, last - 60, *quick], 80, "live"),  # It has been silent for 60 s before.
            ([last - 90, last - 60, *quick], 200, "stalled"),
        ):
            assert state_of(tmp_path / "run", times=times, now=last + silence).name == name
        found = state_of(tmp_path / "run", times=quick, now=last + 75)
        assert "no step ended in 1 min 1" in found.reason
        assert "one takes 500 ms; its process lives" in found.reason
    finally:
        w.close()


def test_a_recording_that_failed_has_crashed_and_says_why(tmp_path: Path) -> None:
    train(tmp_path / "run", 2)
    (facts,) = (tmp_path / "run").glob("rank-*/attempt-*/attempt.json")
    write_json(facts, {**read_json(facts), "state": "failed", "why": "no space left"})
    found = state_of(tmp_path / "run")
    assert (found.name, found.reason) == ("crashed", "no space left")
    facts.write_bytes(b"{")
    assert state_of(tmp_path / "run").name == "crashed"


def test_the_worst_rank_says_how_all_of_them_are(tmp_path: Path) -> None:
    train(tmp_path / "run", 2)
    home = tmp_path / "run" / "rank-00000"
    w = train(tmp_path / "other", 2, is_closed=False)
    try:
        (tmp_path / "other" / "rank-00000").rename(home.with_name("rank-00001"))
        assert state_of(tmp_path / "run").name == "live"  # One rank is done, and one goes on.
        (facts,) = home.glob("attempt-*/attempt.json")
        write_json(facts, {**read_json(facts), "state": "open"})
        found = state_of(tmp_path / "run")
        assert (found.name, found.reason[:7]) == ("crashed", "rank 0:")
    finally:
        (home.with_name("rank-00001")).rename(tmp_path / "other" / "rank-00000")
        w.close()


def test_where_the_file_system_has_no_locks_the_rhythm_alone_counts(tmp_path: Path) -> None:
    train(tmp_path / "run", 3)
    (facts,) = (tmp_path / "run").glob("rank-*/attempt-*/attempt.json")
    body = {**read_json(facts), "state": "open"}
    write_json(facts, {**body, "locked": False})
    times = [time.time() - 1, time.time()]
    assert state_of(tmp_path / "run", times=times).name == "live"
    assert state_of(tmp_path / "run", times=times, now=time.time() + 60).name == "stalled"
    write_json(facts, {**body, "locked": True})
    assert state_of(tmp_path / "run", times=times).name == "crashed"


def test_runs_are_found_below_a_folder_and_links_are_not_followed(tmp_path: Path) -> None:
    train(tmp_path / "b" / "two", 1)
    train(tmp_path / "a", 1)
    tt.open(tmp_path / "a").save(tmp_path / "c.safetensors")
    from safetensors.torch import save_file

    save_file({"x": torch.ones(1)}, tmp_path / "weights.safetensors")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    found = [str(one.relative_to(tmp_path)) for one in runs_under(tmp_path)]
    assert found == ["a", "b/two", "c.safetensors"]


@pytest.mark.slow
def test_a_process_that_is_stopped_stalls_and_one_that_is_killed_crashes(tmp_path: Path) -> None:
    with training(tmp_path / "run") as process:
        wait_for(process, 100)
        assert state_of(tmp_path / "run").name == "live"
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        times = tt.open(tmp_path / "run").times[1]
        later = time.time() + 60
        found = state_of(tmp_path / "run", times=times, now=later)
        assert found.name == "stalled"
        gaps = [after - before for before, after in pairwise(times)]
        assert found.usual is not None
        assert 0.01 < found.usual <= max(gaps)  # Each step sleeps for 0.01 s.
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        assert state_of(tmp_path / "run").name == "crashed"
        assert "ended without closing it" in state_of(tmp_path / "run").reason
