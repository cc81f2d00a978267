"""Every command that takes a run, on every kind of thing that a user may give it.

No traceback, never the exit code of a fault of torchtap itself, and a code that fits: 0 for what is
a run and whole, 2 for what is none.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recordings import batch, small_net
from safetensors.torch import save_file

import torchtap as tt
from torchtap.cli import app as cli
from torchtap.runs.store.layout import RUN_FILE, read_json, write_json

READING: dict[str, tuple[str, ...]] = {
    "ls": ("ls", "RUN_FILE"),
    "ls --json": ("ls", "RUN_FILE", "--json"),
    "ls --all": ("ls", "RUN_FILE", "--all"),
    "show": ("show", "RUN_FILE"),
    "show --modules": ("show", "RUN_FILE", "--modules"),
    "show --json": ("show", "RUN_FILE", "--json"),
    "stats": ("stats", "RUN_FILE"),
    "stats --step all": ("stats", "RUN_FILE", "--step", "all"),
    "stats --columns": ("stats", "RUN_FILE", "--columns", "mean,update_ratio", "--sort", "mean"),
}
"""Commands that answer for every run that is whole and holds something."""
OTHERS: dict[str, tuple[str, ...]] = {
    "graph": ("graph", "RUN_FILE"),
    "stats --columns ?": ("stats", "RUN_FILE", "--columns", "?"),
    "stats --slices": ("stats", "RUN_FILE", "--slices", "units"),
    "show WHERE": ("show", "RUN_FILE", "nowhere:output"),
    "show --step": ("show", "RUN_FILE", "--step", "77"),
    "maps": ("maps", "RUN_FILE", "-o", "OUT/maps.png"),
    "diagnose": ("diagnose", "RUN_FILE"),
    "diagnose --json": ("diagnose", "RUN_FILE", "--json", "--since", "1"),
    "doctor": ("doctor", "RUN_FILE"),
    "doctor --json": ("doctor", "RUN_FILE", "--json"),
    "merge": ("merge", "RUN_FILE", "--to", "OUT/merged.safetensors"),
    "export npz": ("export", "RUN_FILE", "--format", "npz", "-o", "OUT/x.npz"),
    "report": ("report", "RUN_FILE", "-o", "OUT/page.html"),
    "compare": ("compare", "RUN_FILE", "RUN_FILE"),
    "compare --json": ("compare", "RUN_FILE", "RUN_FILE", "--json"),
    "top": ("top", "RUN_FILE", "--once"),
    "export csv": ("export", "RUN_FILE", "-o", "OUT/x.csv"),
    "cam": ("cam", "RUN_FILE", "--shape", "2,3", "-o", "OUT/map.png"),
    "summary": ("summary", "RUN_FILE", "--shape", "2,3"),
    "record": ("record", "RUN_FILE", "--shape", "2,3", "--to", "OUT/r.safetensors"),
    "record --data": ("record", "torch.nn:ReLU", "--data", "RUN_FILE", "--to", "OUT/run"),
    "report --json": ("report", "RUN_FILE", "--json", "-o", "OUT/page.html"),
    "run --to": ("run", "--to", "RUN_FILE", "no_such_script.py"),
    "run --to --resume": ("run", "--to", "RUN_FILE", "--resume", "no_such_script.py"),
}
WHOLE = ("file", "statistics", "folder", "folder of statistics", "rank", "attempt", "killed")
NO_RUN = (
    "foreign",
    "truncated",
    "header alone",
    "nothing in it",
    "text",
    "other version",
    "folder of another version",
    "no run",
    "empty directory",
    "missing",
    "link to nothing",
    "lane",
    "index",
)
DAMAGED = ("empty run", "empty folder", "no rank", "torn lane", "torn journal", "series", "pipe")


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind by name."""
    home = tmp_path_factory.mktemp("things")
    return {**_runs(home), **_broken(home)}


def _trained(to: list[Any], *, steps: int = 3, during: Callable[[], object] = lambda: None) -> Any:
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with tt.watch(net, "*:output,grad_output,param,update", to=to) as w:
        for step in range(steps):
            optimizer.zero_grad()
            net(batch(step)).square().mean().backward()
            optimizer.step()
            w.log(loss=1.0)
            w.step()
            if step == 1:
                during()
    return w.run


def _runs(home: Path) -> dict[str, Path]:
    run, killed = home / "folder", home / "killed"
    disk = tt.Disk(run)

    def kill() -> None:
        disk.flush()
        shutil.copytree(run, killed)  # A copy has no writer that lives.

    _trained([disk, tt.Stats()], during=kill)
    _trained([tt.Stats(), tt.Disk(home / "statistics", values=None)])
    attempt = run / "rank-00000" / "attempt-000"
    relu = torch.nn.ReLU()
    with tt.watch(relu, to=tt.Disk(home / "wide")):
        relu(torch.ones(200, 200))
    (lane,) = (home / "wide").rglob("lanes/*.safetensors")
    return {
        "file": _trained([tt.Memory(), tt.Stats()]).save(home / "file.safetensors"),
        "statistics": _trained([tt.Stats()]).save(home / "statistics.safetensors"),
        "empty run": _trained([tt.Memory()], steps=0).save(home / "empty.safetensors"),
        "folder": run,
        "folder of statistics": home / "statistics",
        "rank": attempt.parent,
        "attempt": attempt,
        "killed": killed,
        "lane": lane,
        "index": attempt / "index.safetensors",
        "series": attempt / "series.safetensors",
    }


def _broken(home: Path) -> dict[str, Path]:
    whole = (home / "file.safetensors").read_bytes()
    made = {name: home / f"{name.replace(' ', '_')}.safetensors" for name in NO_RUN}
    save_file({"weight": torch.ones(2, 3)}, made["foreign"])
    made["truncated"].write_bytes(whole[:-100])
    (length,) = struct.unpack("<Q", whole[:8])
    made["header alone"].write_bytes(whole[: 8 + length // 2])
    made["nothing in it"].write_bytes(b"")
    made["text"].write_text("Dear diary,\n")
    header = json.loads(whole[8 : 8 + length])
    body = json.loads(header["__metadata__"]["torchtap"])
    header["__metadata__"]["torchtap"] = json.dumps({**body, "format": 99})
    raw = json.dumps(header).encode()
    made["other version"].write_bytes(struct.pack("<Q", len(raw)) + raw + whole[8 + length :])
    made["link to nothing"].symlink_to(home / "gone")
    made["missing"] = home / "missing"
    made["folder of another version"] = shutil.copytree(home / "folder", home / "version")
    known = read_json(home / "folder" / RUN_FILE)
    write_json(made["folder of another version"] / RUN_FILE, {**known})
    told = made["folder of another version"] / RUN_FILE
    told.write_text(told.read_text().replace('"format": 1', '"format": 99'))
    made["no run"] = home / "no_run"
    made["no run"].mkdir()
    (made["no run"] / "notes.txt").write_text("x")
    made["empty directory"] = home / "empty_directory"
    made["empty directory"].mkdir()
    made["empty folder"] = home / "empty_folder"
    _trained([tt.Disk(made["empty folder"])], steps=0)
    made["no rank"] = home / "no_rank"
    made["no rank"].mkdir()
    shutil.copy(home / "folder" / RUN_FILE, made["no rank"] / RUN_FILE)
    for name, part in (("torn lane", "*"), ("torn journal", "journal.arrows")):
        made[name] = shutil.copytree(home / "killed", home / name.replace(" ", "_"))
        for file in made[name].rglob(part):
            if file.is_file() and (
                part != "*" or file.parent.name == "lanes" or "small" in str(file)
            ):
                os.truncate(file, file.stat().st_size // 2)
    made["pipe"] = home / "pipe"
    os.mkfifo(made["pipe"])
    del made["lane"], made["index"]
    return made


def _called(
    words: tuple[str, ...], thing: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    capsys.readouterr()
    put = {"RUN_FILE": str(thing)}
    code = cli.run([put.get(word, word.replace("OUT", str(out))) for word in words])
    said = capsys.readouterr()
    for sign in ("Traceback", "raised the above", "fault of torchtap"):
        assert sign not in said.err, (words, said.err)
    assert code in (0, 1, 2), (words, said.err)
    assert code != 2 or said.err.startswith(("torchtap: ", "Usage: ", "Error: ")), said.err
    if code == 2:
        assert 1 <= said.err.count("\n") <= 8, said.err
    if code == 0 and "--json" in words:
        json.loads(said.out)
    return code, said.out + said.err


@pytest.mark.parametrize("name", WHOLE)
def test_a_run_that_is_whole_is_read(
    name: str, things: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in READING.values():
        code, said = _called(words, things[name], tmp_path, capsys)
        assert code == 0, (words, said)
    for words in OTHERS.values():
        _called(words, things[name], tmp_path, capsys)


@pytest.mark.parametrize("name", NO_RUN)
def test_what_is_no_run_is_refused(
    name: str, things: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in READING.values():
        code, said = _called(words, things[name], tmp_path, capsys)
        assert code == 2, (words, said)
    for words in OTHERS.values():
        if words[0] in ("maps", "merge", "export"):
            assert _called(words, things[name], tmp_path, capsys)[0] == 2, words
        else:
            _called(words, things[name], tmp_path, capsys)
    assert not [one for one in tmp_path.iterdir() if one.is_file()]


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_damaged_or_empty_ends_without_a_traceback(
    name: str, things: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (*READING.values(), *OTHERS.values()):
        _called(words, things[name], tmp_path, capsys)


def test_every_command_that_takes_a_run_is_tried() -> None:
    tried = {words[0] for words in (*READING.values(), *OTHERS.values())}
    # The demo takes nothing, `attribute`, `selfcheck` and `replay` no run; `serve` ends when
    # interrupted.
    others = {"demo", "attribute", "selfcheck", "replay", "serve"}
    assert set(cli.cli.commands) - tried <= others
