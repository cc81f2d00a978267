"""``torchtap doctor`` finds everything that is not as it was written."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from recordings import batch, files_of, record_steps, small_net

import torchtap as tt
from torchtap.cli import app as cli
from torchtap.runs.store.folder_doctor import examine
from torchtap.runs.store.layout import read_json, write_json
from torchtap.runs.store.training_progress import ProgressWriter, TrainingProgress


def recorded(path: Path) -> Path:
    net = small_net()
    with tt.watch(net, "*:output", to=[tt.Disk(path), tt.Stats()]) as w:
        for step in range(3):
            net(batch(step, 3000))
            w.step()
    return path


def test_a_whole_run_is_found_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "run")
    assert cli.run(["doctor", str(path)]) == 0
    assert capsys.readouterr().out.startswith("Whole: every checksum is right.")
    found = examine(path)
    assert [one.state for one in found.attempts] == ["closed"]
    assert (found.attempts[0].num_steps, found.attempts[0].num_values) == (3, 12)


def test_a_flipped_bit_in_any_file_is_found(tmp_path: Path) -> None:
    path, chance = recorded(tmp_path / "run"), random.Random(0)
    unchecked = {"run.json", "statistics.arrows"}
    for file in files_of(path):
        whole = file.read_bytes()
        for _ in range(6):
            damaged = bytearray(whole)
            place = chance.randrange(len(whole))
            if file.name in unchecked or (file.suffix == ".arrows" and not place % 8 < 4):
                continue  # Padding between columns is read by nobody.
            damaged[place] ^= 1 << chance.randrange(8)
            file.write_bytes(damaged)
            padding = file.suffix == ".arrows" or (file.parent.name == "lanes" and place < 4096)
            assert not examine(path).is_whole or padding, (file.name, place)
        file.write_bytes(whole)
    assert examine(path).is_whole


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_run_of_statistics_alone_has_their_steps(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net, path = small_net(), tmp_path / "run"
    with tt.watch(net, "*:output", to=[tt.Disk(path, values=None), tt.Stats()]) as w:
        for step in range(4):
            net(batch(step))
            w.step()
        if how == "killed":
            w.sync()
            path = Path(shutil.copytree(path, tmp_path / "copy"))
    cli.run(["doctor", str(path)])
    assert "statistics of 4 steps, 0 values" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    ["index.safetensors", "journal.arrows", "series.safetensors", "statistics.parquet"],
)
def test_a_file_that_is_missing_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recorded(tmp_path / "run")
    (path / "rank-00000" / "attempt-000" / name).unlink()
    assert cli.run(["doctor", str(path)]) == 1
    assert name in capsys.readouterr().out
    assert len(tt.open(path)) == 12


def test_a_damaged_value_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "run")
    (lane,) = path.rglob("lanes/*0_output.safetensors")
    with lane.open("r+b") as stream:
        stream.seek(4096 + 3000 * 64 + 7)
        stream.write(b"\xff\xfe")
    assert cli.run(["doctor", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["is_whole"]
    (why,) = found["attempts"][0]["problems"]
    assert why.startswith("the value of 0:output in step 1, call 0, is damaged in 0000")


def test_a_run_whose_process_was_killed_is_whole(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run")
    home = path / "rank-00000" / "attempt-000"
    facts = read_json(home / "attempt.json")
    write_json(home / "attempt.json", {**facts, "state": "open"})
    journal = home / "journal.arrows"
    os.truncate(journal, journal.stat().st_size - 100)
    (home / "index.safetensors").unlink()
    for progress in [(0, 3, 3, 3), (0, 3, 3, 2)]:  # The last commit had been there, or never was.
        (home / "progress").unlink()
        ProgressWriter(home / "progress").write(TrainingProgress(*progress))
        found = examine(path)
        assert found.is_whole == (TrainingProgress(*progress) == TrainingProgress(0, 3, 3, 2))
    assert [(one.state, one.num_steps) for one in found.attempts] == [("ended", 2)]


def test_a_run_that_grows_is_whole_so_far(tmp_path: Path) -> None:
    net, disk = small_net(), tt.Disk(tmp_path / "run")
    with tt.watch(net, to=disk) as w:
        net(batch(0))
        w.step()
        disk.flush()
        assert [one.state for one in examine(tmp_path / "run").attempts] == ["growing"]


def test_what_is_no_folder_of_a_run_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["doctor", str(tmp_path)]) == 2
    assert "is a folder and no run" in capsys.readouterr().err
    assert cli.run(["doctor", str(tmp_path / "none")]) == 2


def test_folders_are_listed_and_examined_without_torch(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run")
    code = (
        "import sys; from torchtap.cli.app import run\n"
        f"assert run(['ls', {str(path)!r}]) == 0\n"
        "assert 'pyarrow' not in sys.modules\n"
        f"assert run(['doctor', {str(path)!r}]) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_folder_is_listed_as_the_run_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record_steps(tmp_path / "run", range(5))
    record_steps(tmp_path / "run", range(3, 6), rows=7, resume=True)
    assert cli.run(["ls", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.rstrip() == str(tt.open(tmp_path / "run"))
    assert cli.run(["show", str(tmp_path / "run"), "1"]) == 0
    assert cli.run(["stats", str(tmp_path / "run"), "1", "--step", "all"]) == 0
    assert "1:output" in capsys.readouterr().out


@pytest.mark.parametrize("is_first", [True, False], ids=["alone", "a second attempt"])
def test_an_attempt_that_was_closed_without_a_commit_is_whole(
    is_first: bool, tmp_path: Path
) -> None:
    path, net = tmp_path / "run", small_net()
    if not is_first:
        record_steps(path, range(2))
    with tt.watch(net, to=[tt.Disk(path, resume=True), tt.Stats()]):
        pass
    assert examine(path).is_whole
    assert [one.state for one in examine(path).attempts] == ["closed"] * (2 - is_first)
    assert "lost" not in "; ".join(one.reason for one in tt.open(path).absent)


def test_an_attempt_whose_process_ended_before_it_wrote_is_empty(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run")
    home = path / "rank-00000" / "attempt-001"
    for make in (home.mkdir, (home / "lanes").mkdir, (home / "journal.arrows").touch):
        make()
        found = examine(path)
        assert found.is_whole
        assert [one.state for one in found.attempts] == ["closed", "empty"]
        run = tt.open(path)
        assert run.steps == [0, 1, 2]
        assert "has written nothing so far" in run.absent[0].reason


def test_a_description_that_is_damaged_is_named_whatever_the_path_is(tmp_path: Path) -> None:
    path = tmp_path / "format" / "run of another format"
    recorded(path)
    facts = path / "rank-00000" / "attempt-000" / "attempt.json"
    facts.write_bytes(facts.read_bytes()[:-40])
    assert not examine(path).is_whole
    run = tt.open(path / "rank-00000")
    assert run.steps == [0, 1, 2]
    assert any("attempt.json is damaged" in one.reason for one in run.absent)


def test_another_format_is_refused_by_doctor_and_reader(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run")
    facts = path / "rank-00000" / "attempt-000" / "attempt.json"
    facts.write_bytes(facts.read_bytes().replace(b'"format": 1', b'"format": 9'))
    for look in (tt.open, examine):
        with pytest.raises(tt.RunError, match="has format 9"):
            look(path)


@pytest.mark.parametrize("command", ["show", "stats"])
def test_tables_of_a_damaged_folder_say_that_something_is_absent(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    net = small_net()
    with tt.watch(net, "*:output", to=tt.Disk(path)) as w:
        for step in range(3):
            net(batch(step))
            w.step()
    assert cli.run([command, str(path)]) == 0
    assert "absent" not in capsys.readouterr().err
    for lane in path.rglob("*.arrows"):
        os.truncate(lane, 0)
    assert cli.run([command, str(path)]) == 0
    assert f"absent: {tt.open(path).absent[0].reason}" in capsys.readouterr().err
