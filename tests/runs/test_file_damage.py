"""A run in one file that was damaged: the right value, or an error, and ``doctor`` finds it."""

from __future__ import annotations

import dataclasses
import json
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import content
from recordings import batch, held, small_net
from records import record, run_of
from safetensors.torch import load_file, save_file
from torch import nn

import torchtap as tt
from torchtap.cli import app as cli
from torchtap.runs.inventory import inventory_of_file
from torchtap.runs.single_file.file_doctor import examine_file

OLD = Path(__file__).parents[1] / "data" / "run_without_checksums.safetensors"
"""Written by the last torchtap whose files had no checksums: a value of every plain dtype with the
bytes ``37 * n % 256``, and two steps of a ReLU with statistics, ids, labels and a logged number."""


def full_run() -> tt.Run:
    """A run with a little of everything that a file can hold."""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    stats = tt.Stats(statistics=[tt.stats.top_k(1)], sample_mean=["output"])
    with tt.watch(net, "1:output", to=[tt.Memory(), stats]) as w:
        for step in range(2):
            net(torch.full((2, 2), float(step + 1)))
            w.log(loss=0.5 * step)
            with torch.no_grad(), w.evaluating():
                net(torch.ones(1, 2))
            w.step(ids=[step, f"s{step}"], split="train")
    return w.run


def everything(run: tt.Run) -> Any:
    """All that a run says, as plain values."""
    series = {
        (phase, str(site), step): repr(run.stats(site, step=step, phase=phase).numbers())
        + repr(run.stats(site, step=step, phase=phase).extra)
        for phase in ("forward", "eval")
        for site in run.series.sites
        for step in (0, 1, "all")
    }
    quantiles = [run.quantile(site, 0.5, step=0) for site in run.series.sites]
    notes = [run.times, [(run.ids(step), run.labels(step)) for step in run.steps]]
    scalars = {name: run.scalars(name) for name in run.scalar_names}
    said = [run.meta, list(run.absent), run.sites, run.steps, run.mean_norm()]
    return repr([held(run), series, quantiles, notes, scalars, said])


def damaged(whole: bytes, chance: random.Random) -> Iterator[bytes]:
    """One file, damaged in one of many ways each time."""
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    while True:
        place = chance.randrange(*((0, len(whole)) if chance.random() < 0.5 else (0, header)))
        other = chance.randrange(len(whole))
        length = chance.randrange(1, 40)
        found = bytearray(whole)
        kind = chance.randrange(6)
        if kind <= 1:
            found[place] ^= 1 << chance.randrange(8)
        elif kind == 2:
            found[place] = chance.choice(b'0123456789"{}[],: \x00\xff')
        elif kind == 3:
            found[place : place + length], found[other : other + length] = (
                whole[other : other + length],
                whole[place : place + length],
            )
        elif kind == 4:
            del found[place:]
        else:
            found[place:place] = whole[other : other + length]
        if found != whole:
            yield bytes(found)


def is_found(path: Path, damage: bytes, truth: str) -> None:
    """See that a damaged file is right or refused, by its values and by its list, and is found."""
    path.write_bytes(damage)
    try:
        assert everything(tt.open(path)) == truth
    except tt.RunError as error:
        assert path.name in str(error)
    try:
        inventory_of_file(path)
    except tt.RunError as error:
        assert path.name in str(error)
    try:
        assert not examine_file(path).is_whole
    except tt.RunError as error:
        assert path.name in str(error)


def test_damage_is_an_error_or_changes_nothing_and_is_found(tmp_path: Path) -> None:
    path = full_run().save(tmp_path / "run.safetensors")
    whole, truth = path.read_bytes(), everything(tt.open(path))
    mutations = damaged(whole, random.Random(0))
    for _ in range(150):
        is_found(path, next(mutations), truth)
    path.write_bytes(whole)
    assert examine_file(path).is_whole
    assert everything(tt.open(path)) == truth == everything(full_run_again(path))


def full_run_again(path: Path) -> tt.Run:
    """The run, read and saved again."""
    return tt.open(tt.open(path).save(path.with_name("again.safetensors")))


@pytest.mark.slow
def test_every_byte_that_changes_is_found(tmp_path: Path) -> None:
    path = full_run().save(tmp_path / "run.safetensors")
    whole, truth = path.read_bytes(), everything(tt.open(path))
    chance = random.Random(1)
    for place in range(len(whole)):
        damage = bytearray(whole)
        damage[place] ^= 1 << chance.randrange(8)
        is_found(path, bytes(damage), truth)
    mutations = damaged(whole, chance)
    for _ in range(5000):
        is_found(path, next(mutations), truth)


@pytest.mark.slow
def test_damage_in_a_file_of_before_is_never_a_foreign_error(tmp_path: Path) -> None:
    path, mutations = tmp_path / "run.safetensors", damaged(OLD.read_bytes(), random.Random(2))
    for _ in range(5000):
        path.write_bytes(next(mutations))
        try:
            run = tt.open(path)
            held(run)
            str(run)
        except tt.RunError as error:
            assert path.name in str(error)
        try:
            inventory_of_file(path)
            assert not examine_file(path).is_whole
        except tt.RunError as error:
            assert path.name in str(error)


# --- what protects it --------------------------------------------------------------------------


def test_a_file_is_checked_and_read_by_others_as_the_page_shows(tmp_path: Path) -> None:
    """With the program of docs/reference/format.md, in a process that cannot import torchtap."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "format.md").read_text()
    program = next(one for one in page.split("```python\n") if "zlib.crc32" in one).split("```")[0]
    file = full_run().save(tmp_path / "run.safetensors")
    whole = file.read_bytes()

    def said() -> subprocess.CompletedProcess[str]:
        start = (
            "import sys, pathlib\nsys.modules['torchtap'] = None\n"
            "def loaded(): return {'torch'} & set(sys.modules)\n"
        )
        code = f"{start}file = pathlib.Path({str(file)!r})\n{program}\nprint(len(found), *loaded())"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    *values, last = said().stdout.splitlines()
    assert values == [
        f"['1', 'output', ''] {step} float32 {shape}"
        for step in (0, 1)
        for shape in ("(2, 2)", "(1, 2)")
    ]
    assert last == f"{len(load_file(file)) + 1}"
    for place in (9, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert said().returncode == 1


def test_a_value_is_compared_when_it_is_first_read_and_not_by_request(tmp_path: Path) -> None:
    value = torch.arange(64.0)
    path = run_of(record(value=value), record("other")).save(tmp_path / "run.safetensors")
    raw = bytearray(path.read_bytes())
    raw[raw.index(value.numpy().tobytes()) + 13] ^= 4
    path.write_bytes(raw)
    run = tt.open(path)
    assert run["other"].shape == (2, 3)
    with pytest.raises(tt.RunError, match=r"The value of fc:output in step 0, call 0, is damaged"):
        _ = run["fc"]
    assert (tt.open(path, verify=False)["fc"] != value).sum() == 1


def test_a_digit_of_the_header_that_moves_a_value_to_another_step_is_refused(
    tmp_path: Path,
) -> None:
    path = run_of(record(), record(step=1)).save(tmp_path / "run.safetensors")
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'\\"step\\": 1,', b'\\"step\\": 7,'))
    for read in (tt.open, inventory_of_file):
        with pytest.raises(tt.RunError, match="its header, which says which value"):
            read(path)
    (why,) = tt.open(path, verify=False).absent
    assert why.reason.startswith("the file is damaged: its header")


def test_a_file_whose_checksums_were_taken_away_is_refused(tmp_path: Path) -> None:
    path = run_of(record()).save(tmp_path / "run.safetensors")
    path.write_bytes(path.read_bytes().replace(b'"torchtap.crc32": {', b'"torchtap.crc33": {'))
    with pytest.raises(tt.RunError, match="says that it has checksums, and there is no tensor"):
        tt.open(path)


def test_a_merged_run_is_protected_and_its_parts_are_compared(tmp_path: Path) -> None:
    def rank(number: int) -> Path:
        with tt.watch(net := nn.ReLU()) as w:
            net(torch.full((4, 64), 2.0 + number))
        meta = dataclasses.replace(w.run.meta, rank=number, world_size=2)
        run = tt.Run(list(w.run.records()), meta)
        return run.save(tmp_path / f"run.rank{number}.safetensors")

    paths = [rank(0), rank(1)]
    merged = tt.merge(paths).save(tmp_path / "run.safetensors")
    assert examine_file(merged).is_whole
    assert torch.equal(
        tt.open(merged).cat(".:output"),
        torch.cat([torch.full((4, 64), 2.0), torch.full((4, 64), 3.0)]),
    )
    raw = bytearray(paths[1].read_bytes())
    raw[raw.index(struct.pack("<f", 3.0) * 8) + 5] ^= 1
    paths[1].write_bytes(raw)
    with pytest.raises(tt.RunError, match=r"is damaged in .*rank1"):
        tt.merge(paths).save(merged)
    assert examine_file(merged).is_whole  # It is the one of before.


def test_replicas_in_files_of_before_are_compared_by_their_values(tmp_path: Path) -> None:
    def rank(number: int, value: float) -> Path:
        row = record(value=torch.full((3,), value), port="param", leaf="weight")
        run = run_of(row)
        meta = dataclasses.replace(run.meta, rank=number, world_size=2)
        path = tt.Run([row], meta).save(tmp_path / f"run.rank{number}.safetensors")
        return as_of_before(path)

    assert tt.merge([rank(0, 1.0), rank(1, 1.0)])["fc:param[weight]"].tolist() == [1.0] * 3
    differing = tt.merge([rank(0, 1.0), rank(1, 2.0)])
    assert "fc:param[weight]" not in differing


# --- files of before ---------------------------------------------------------------------------


def as_of_before(path: Path, change: Any = lambda body: None) -> Path:
    """Write a file again without its checksums, as the files of before are."""
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    body = json.loads(header["__metadata__"]["torchtap"])
    body.pop("checksums", None)
    change(body)
    tensors = load_file(path)
    tensors.pop("torchtap.crc32", None)
    save_file(tensors, path, metadata={"torchtap": json.dumps(body)})
    return path


def test_a_file_of_before_opens_and_says_that_it_is_unprotected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tt.open(OLD)
    for row in run.records(steps=1):
        if row.site.path == "":
            continue
        size = row.value.element_size()
        numbers = (torch.arange(6 * size) * 37 % 256).to(torch.uint8)
        right = (numbers > 127)[:6] if row.value.dtype is torch.bool else numbers
        assert content(row.value) == content(right.view(row.value.dtype).reshape(2, 3))
    assert len(run) == 43
    assert [run.stats(".:output", step=step).l1 for step in (0, 1)] == [4.0, 5.0]
    assert run.stats(".:output", step=0).extra["top_k"][0].value == 3.0
    assert run.scalars("loss") == ([0, 1], [0.0, 0.5])
    assert (run.ids(1), run.labels(1)) == (["s1"], {"split": "train"})
    assert "has no checksums" in run.absent[-1].reason
    assert cli.run(["ls", str(OLD)]) == 0
    assert "has no checksums" in " ".join(capsys.readouterr().out.split())
    assert cli.run(["doctor", str(OLD)]) == 1
    assert capsys.readouterr().out.startswith("The file has no checksums")
    again = run.save(tmp_path / "again.safetensors")
    assert examine_file(again).is_whole
    assert held(tt.open(again)) == held(run)


LIES: dict[str, tuple[str, Any, str]] = {
    "missing": ("name", ".:output#9.0.-1.forward", r"as the value of fc:output \(step 1, call 0\)"),
    "dtype": ("dtype", "int4", r"fc:output \(step 1, call 0\) is int4, and the file holds it as"),
    "unknown dtype": ("dtype", "float31", "none there that can be read"),
    "port": ("site", ["fc", "outptu", ""], "none there that can be read"),
    "phase": ("phase", "forwart", "none there that can be read"),
    "step": ("step", "1", "none there that can be read"),
    "large step": ("step", 1 << 63, "none there that can be read"),
    "no list": ("labels", 3, "none there that can be read"),
}


@pytest.mark.parametrize(("field", "value", "message"), list(LIES.values()), ids=list(LIES))
@pytest.mark.parametrize("reader", [tt.open, inventory_of_file])
def test_a_header_that_means_nothing_is_an_error_that_says_where(
    reader: Any, field: str, value: Any, message: str, tmp_path: Path
) -> None:
    path = run_of(record(), record(step=1)).save(tmp_path / "run.safetensors")
    as_of_before(path, lambda body: body["records"][1].update({field: value}))
    with pytest.raises(tt.RunError, match=message) as caught:
        reader(path)
    assert str(path) in str(caught.value)


# --- torchtap doctor FILE ----------------------------------------------------------------------


def test_doctor_names_what_of_a_file_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = torch.arange(64.0)
    path = run_of(record(), record(value=value, step=3)).save(tmp_path / "run.safetensors")
    assert cli.run(["doctor", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Whole: every checksum is right.",
        "",
        "run.safetensors: 2 steps, 2 values, 280 B",
    ]
    raw = bytearray(path.read_bytes())
    raw[raw.index(value.numpy().tobytes()) + 13] ^= 4
    path.write_bytes(raw)
    assert cli.run(["doctor", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["is_whole"]
    assert found["problems"] == ["the value of fc:output in step 3, call 0, is damaged"]
    raw[raw.index(b"torchtap.crc32") + 1] = ord("x")
    path.write_bytes(raw)
    assert cli.run(["doctor", str(path)]) == 1


# --- files of a folder -------------------------------------------------------------------------


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_file_of_a_folder_is_answered_with_its_folder(
    is_closed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, net = tmp_path / "run", small_net()
    with tt.watch(net, "0:output", to=(disk := tt.Disk(home))) as w:
        net(batch(0, 3000))
        w.step()
        disk.flush()
        if not is_closed:
            refused(home, next(home.rglob("lanes/*")), capsys)
    if is_closed:
        for part in ("lanes/*", "index.safetensors"):
            refused(home, next(home.rglob(part)), capsys)


def refused(home: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """See that every command that reads a run names the folder that a file is of."""
    more = {"export": ["--to", "npz"], "merge": ["--to", f"{home}.safetensors"]}
    for command in ("ls", "show", "stats", "doctor", "export", "merge"):
        assert cli.run([command, str(file), *more.get(command, [])]) == 2
        said = capsys.readouterr().err
        assert "is a part of a run in a folder" in said
        assert f"Give the folder {home}." in said


def test_a_name_with_a_lone_surrogate_comes_back(tmp_path: Path) -> None:
    run = run_of(record("a\ud800", torch.ones(2)), record("a\\ud800", torch.zeros(2)))
    path = run.save(tmp_path / "run.safetensors")
    again = tt.open(path)
    assert [site.path for site in again.sites] == ["a\ud800", "a\\ud800"]
    assert [row.value.tolist() for row in again.records()] == [[1.0, 1.0], [0.0, 0.0]]
    assert len(load_file(path)) == 3
