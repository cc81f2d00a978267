"""The system, or another process, refuses a file; a run that means harm can do none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recordings import batch, files_of, held, record_steps, small_net

import torchtap as tt
from torchtap.core.errors import RunError
from torchtap.runs.store.folder_doctor import examine
from torchtap.runs.store.index import Index
from torchtap.runs.store.index_file import read_index, write_index
from torchtap.runs.store.layout import read_json, write_json

# --- a folder that cannot be written ----------------------------------------------------------


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, where the system lets a test mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not _mounts("-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)):
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def _mounts(*words: str) -> bool:
    try:
        return subprocess.run(["mount", *words], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def test_a_run_on_a_read_only_disk_is_read_and_not_written(mounted: Path) -> None:
    flowed = record_steps(mounted / "run", range(3), rows=3000)
    assert _mounts("-o", "remount,ro", str(mounted))
    assert held(tt.open(mounted / "run")) == flowed
    assert examine(mounted / "run").is_whole
    net = small_net()
    for path in (mounted / "run", mounted / "other"):
        with pytest.raises(OSError, match="Read-only file system"):
            tt.watch(net, to=tt.Disk(path, resume=True))
    assert not any(module._forward_hooks for module in net.modules())
    assert held(tt.open(mounted / "run")) == flowed


# --- two processes ----------------------------------------------------------------------------

_WRITER = """
import sys, torch, torchtap as tt
from recordings import batch, small_net
net, disk = small_net(), tt.Disk(sys.argv[1], resume=True)
w = tt.watch(net, "1", to=disk)
net(batch(0)); w.step(); disk.flush()
print("began", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_another_process_does_not_write_into_the_same_rank(tmp_path: Path) -> None:
    program = [sys.executable, "-c", _WRITER, str(tmp_path / "run")]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_paths()
    ) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "began\n"
        before = [file.read_bytes() for file in files_of(tmp_path)]
        with pytest.raises(tt.RunError, match="is being written by a process that lives"):
            tt.watch(small_net(), to=tt.Disk(tmp_path / "run", resume=True))
        assert [file.read_bytes() for file in files_of(tmp_path)] == before
        writer.kill()
    record_steps(tmp_path / "run", range(1, 3), resume=True)
    run = tt.open(tmp_path / "run")
    assert run.steps == [0, 1, 2]
    assert torch.equal(run.get("1", step=0), small_net()[:2](batch(0)))


def _paths() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


# --- runs that mean harm ----------------------------------------------------------------------

_WATCHED = """
import sys, torch, torchtap as tt, pyarrow, safetensors.torch
import torchtap.runs.store.folder_source, torchtap.runs.store.journal
import torchtap.runs.merging.merged_source
seen = []
def hook(event, args):
    if event in ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn",
                 "os.remove", "os.rename", "os.truncate", "shutil.rmtree"):
        seen.append((event, str(args)[:200]))
    if event == "open" and isinstance(args[2], int) and args[2] & 0o3103:
        seen.append((event, str(args)[:200]))  # For writing, made, or cut off.
def look(path):
    try:
        run = tt.open(path)
        for record in run.records(phase=None):
            record.value
    except tt.RunError as error:
        print(error)
look(sys.argv[1])  # What is imported then is imported.
sys.addaudithook(hook)
for path in sys.argv[1:]:
    look(path)
assert not seen, seen
"""


@pytest.mark.slow
def test_reading_a_run_writes_nothing_and_runs_nothing(tmp_path: Path) -> None:
    """Also runs in which a pickle stands in the place of a file."""
    paths = [tmp_path / name for name in ("whole", "journal.arrows", "attempt.json", "lanes")]
    for path in paths:
        record_steps(path, range(2), rows=3000)
        home = path / "rank-00000" / "attempt-000"
        if path.name != "whole":
            (home / "index.safetensors").unlink()
            place = home / path.name
            target = next(place.iterdir()) if place.is_dir() else place
            target.write_bytes(b"cos\nsystem\n(S'touch %b'\ntR." % bytes(tmp_path / "harm"))
    before = {file: file.read_bytes() for file in files_of(tmp_path)}
    program = [sys.executable, "-c", _WATCHED, *map(str, paths)]
    done = subprocess.run(program, capture_output=True, text=True, env=_paths())
    assert done.returncode == 0, done.stderr
    assert {file: file.read_bytes() for file in files_of(tmp_path)} == before


@pytest.mark.parametrize(
    ("name", "lie"),
    [
        ("offset", -1),
        ("offset", 10**15),
        ("nbytes", -6),
        ("nbytes", 10**15),
        ("row", -5),
        ("row", 10**12),
        ("crc32", 7),
        ("site", 900),
        ("file", 900),
        ("shape", 900),
        ("dtype", 900),
        ("labels", -900),
        ("phase", 77),
    ],
)
def test_an_index_that_lies_with_a_right_checksum_shows_no_wrong_tensor(
    name: str, lie: int, tmp_path: Path
) -> None:
    flowed = record_steps(tmp_path / "run", range(2), rows=3000)
    home = tmp_path / "run" / "rank-00000" / "attempt-000"
    facts = read_json(home / "attempt.json")
    sealed = read_index(home / "index.safetensors", facts["index"])
    assert sealed is not None
    columns = {one: np.array(column) for one, column in sealed.entries.columns.items()}
    columns[name][0] = lie
    index = Index(columns, sealed.entries.tables)
    lines = [line.encode() for line in sealed.lines]
    _write_lying_index(home, facts, index, lines)
    try:
        run = tt.open(tmp_path / "run")
        values = list(_readable(run))
    except RunError:
        return
    for key, value in values:
        assert any(key == own[:3] and value == bits for own, bits in flowed.items())
    for site in run.sites:
        try:
            rows = run.rows(site, range(run.num_rows(site)))
        except RunError:
            continue
        assert rows.shape[0] in (6000, 3000)


def _write_lying_index(home: Path, facts: dict[str, Any], index: Index, lines: list[bytes]) -> None:
    try:
        written = write_index(home / "index.safetensors", index, lines)
    except (IndexError, ValueError):
        pytest.skip("the writer refuses to write such an index")
    write_json(home / "attempt.json", {**facts, "index": written})


def _readable(run: tt.Run) -> Iterator[tuple[tuple[Any, ...], Any]]:
    from bits import content

    for place in range(len(run)):
        try:
            one = run.source.records[place]
        except RunError:
            continue
        yield (str(one.site), one.step, one.call), content(one.value)


# --- links ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_there", [True, False], ids=["elsewhere", "nowhere"])
def test_a_rank_that_is_a_link_is_not_written_through(is_there: bool, tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    record_steps(path, range(2))
    (path / "rank-00000").rename(elsewhere)
    (path / "rank-00000").symlink_to(elsewhere if is_there else tmp_path / "nowhere")
    before = files_of(elsewhere)
    net = small_net()
    with pytest.raises(RunError, match=r"is a link to .*writes nowhere but in the folder"):
        tt.watch(net, to=tt.Disk(path, resume=True))
    assert files_of(elsewhere) == before
    assert not (tmp_path / "nowhere").exists()


def test_a_link_under_the_name_of_a_half_written_file_is_not_followed(tmp_path: Path) -> None:
    path, victim = tmp_path / "run", tmp_path / "victim"
    path.mkdir()
    (path / "rank-00000").mkdir()
    victim.write_text("mine")
    (path / f".run.json.{os.getpid()}.part").symlink_to(victim)
    record_steps(path, range(2))
    assert victim.read_text() == "mine"
    assert tt.open(path).steps == [0, 1]
