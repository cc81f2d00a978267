"""The programs in examples/ run as a reader would run them, in a folder of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
BENCHMARKS = EXAMPLES.with_name("benchmarks")


def run(name: str, folder: Path) -> list[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 100
    return done.stdout.splitlines()


def test_every_example_is_run_here() -> None:
    text = Path(__file__).read_text()
    assert [one.name for one in EXAMPLES.glob("*.py") if one.name not in text] == []


@pytest.mark.slow
def test_a_training_is_watched(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    lines = run("watch_a_training.py", tmp_path)
    assert float(lines[0].removeprefix("loss ")) < 1.0  # It learns: it starts at log 10 = 2.3.
    assert (tmp_path / "digits.safetensors").exists()


@pytest.mark.slow
def test_an_activation_is_edited_and_restored(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    lines = run("edit_an_activation.py", tmp_path)
    before, *without, after = [float(line.split()[-1].rstrip("%")) for line in lines]
    assert before == after > 90
    assert any(share != before for share in without)


@pytest.mark.slow
def test_saved_tensors_are_offloaded(tmp_path: Path) -> None:
    lines = run("offload_saved_tensors.py", tmp_path)
    assert lines[-1] == "gradients equal to the bit: True"
    assert any(line.startswith("Moved") and "disk" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(one.stem for one in BENCHMARKS.glob("*.py")))
def test_every_benchmark_finds_what_it_imports(name: str) -> None:
    command = [sys.executable, "-c", f"import {name}"]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
