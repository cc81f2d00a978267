"""A run in the formats of others."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from bits import content
from recordings import batch, record_steps, small_net
from records import record, run_of
from safetensors import safe_open
from safetensors.torch import load_file

import torchtap as tt
from dtypes import any_bits, named
from torchtap.cli import app as cli
from torchtap.runs.export import export_run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    record_steps(tmp_path / "run", range(3))
    return tmp_path / "run"


def test_values_go_to_an_archive_of_arrays(path: Path) -> None:
    assert cli.run(["export", str(path), "1:output", "--format", "npz"]) == 0
    arrays = np.load(path.with_name("run.npz"))
    assert len(arrays.files) == 3 + 1
    found = arrays["1_output_2.0.-1.forward"]
    assert np.array_equal(found, small_net()[:2](batch(2)).detach().numpy())


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
@pytest.mark.parametrize("kind", ["npz", "safetensors", "csv", "parquet"])
def test_a_file_has_the_permissions_of_any_other(path: Path, kind: str) -> None:
    other = path.with_name("other")
    other.touch()
    (file,) = export_run(tt.open(path), kind, path.with_name("out"))
    assert file.stat().st_mode == other.stat().st_mode


def test_values_of_a_site_go_to_one_tensor(path: Path) -> None:
    assert cli.run(["export", str(path), "1", "--format", "safetensors"]) == 0
    (whole,) = load_file(path.with_name("run.safetensors")).values()
    right = torch.cat([small_net()[:2](batch(step)) for step in range(3)])
    assert torch.equal(whole, right)


def test_ids_labels_and_times_go_with_the_values(path: Path) -> None:
    run = tt.open(path)
    expected = [
        {
            "step": step,
            "time": time,
            "ids": [0, 1, 2, 3],
            "labels": {"parity": "odd" if step % 2 else "even"},
        }
        for step, time in zip(*run.times, strict=True)
    ]
    for kind in ("npz", "safetensors"):
        assert cli.run(["export", str(path), "1:output", "--format", kind]) == 0
    with safe_open(path.with_name("run.safetensors"), framework="np") as opened:
        assert json.loads(opened.metadata()["notes"]) == expected
    arrays = np.load(path.with_name("run.npz"), allow_pickle=False)
    assert json.loads(str(arrays["steps"])) == expected


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_a_dtype_that_safetensors_lacks_is_exported_and_named(tmp_path: Path) -> None:
    torch.manual_seed(0)
    few, pairs = any_bits(named("int4"), 3, 2), any_bits(torch.complex32, 3)
    run = run_of(record("few", few), record("pairs", pairs))
    export_run(run, "safetensors", tmp_path / "run.safetensors")
    found = load_file(tmp_path / "run.safetensors")
    assert torch.equal(found["few:output"], few.view(torch.uint8))
    assert content(found["pairs:output"]) == content(torch.view_as_real(pairs))
    with safe_open(tmp_path / "run.safetensors", framework="np") as opened:
        said = json.loads(opened.metadata()["dtypes"])
    assert said == {"few:output": "int4", "pairs:output": "complex32"}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_statistics_go_to_a_table(path: Path, kind: str) -> None:
    assert cli.run(["export", str(path), "1:output", "--format", kind]) == 0
    file = path.with_name(f"run.{kind}")
    if kind == "csv":
        rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
    else:
        rows = pyarrow.parquet.read_table(file).to_pylist()
    assert [int(row["step"]) for row in rows] == [0, 1, 2]
    x = small_net()[:2](batch(1)).detach().double()
    assert float(rows[1]["mean"]) == pytest.approx(float(x.mean()), rel=1e-9)
    assert int(rows[1]["zeros"]) == int((x == 0).sum())


def test_statistics_are_asked_in_sql(path: Path) -> None:
    found = tt.open(path).sql("select site, max(l2) from statistics group by site order by site")
    assert [row[0] for row in found.fetchall()][:2] == [".:grad_output", ".:output"]


def test_names_in_an_archive_lead_nowhere_else(tmp_path: Path) -> None:
    run = run_of(record("../../up"), record("../..%up"), record("/etc"))
    export_run(run, "npz", tmp_path / "run.npz")
    names = np.load(tmp_path / "run.npz").files
    assert len(names) == 3
    assert not any("/" in name or name.startswith(".") for name in names)


def test_narrow_floats_are_widened_for_numpy(tmp_path: Path) -> None:
    value = torch.randn(5).to(torch.bfloat16)
    export_run(run_of(record(value=value)), "npz", tmp_path / "run.npz")
    (found,) = np.load(tmp_path / "run.npz").values()
    assert np.array_equal(found, value.float().numpy())


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_a_run_of_statistics_has_no_values_to_export(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = small_net()
    disk = tt.Disk(tmp_path / "run", values=None)
    with tt.watch(net, to=[tt.Stats(), disk]) as w:
        net(batch(0))
        w.step()
    assert cli.run(["export", str(tmp_path / "run"), "--format", kind]) == 2
    assert "has no values; its statistics are exported to csv" in capsys.readouterr().err
    assert not list(tmp_path.glob(f"*.{kind}"))


def test_the_format_is_what_out_ends_in_and_the_earlier_spelling_works(
    path: Path, tmp_path: Path
) -> None:
    assert cli.run(["export", str(path), "-o", str(tmp_path / "a.csv")]) == 0
    assert cli.run(["export", str(path), "--to", "csv", "-o", str(tmp_path / "b.csv")]) == 0
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    assert cli.run(["export", str(path)]) == 2


def test_a_format_that_does_not_exist_is_refused(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["export", str(path), "--format", "pickle"]) == 2
    assert "expected one of npz, safetensors, csv, parquet" in capsys.readouterr().err


def test_the_run_itself_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_of(record()).save(tmp_path / "run.safetensors")
    assert cli.run(["export", str(file), "--format", "safetensors"]) == 2
    assert "which is the run itself" in capsys.readouterr().err
