"""``torchtap graph``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import torchtap as tt
from torchtap.cli.app import run

SOURCE = """
import torch

def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))

def bad():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(9, 2))
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "graphed_models.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("ending", ["svg", "png", "dot", "md", "json"])
def test_each_kind_of_file_is_written(
    file: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["graph", f"{file}:net", "--shape", "3,4", "--out", f"graph.{ending}"]) == 0
    assert Path(f"graph.{ending}").stat().st_size > 100
    assert f"wrote graph.{ending}" in capsys.readouterr().out


def test_autograd_shows_what_backward_would_walk(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["graph", f"{file}:net", "--shape", "3,4", "--autograd", "--loss", "mean", "--json"]
    assert run(words) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["kind"] == "autograd"
    assert {"MeanBackward0", "AddmmBackward0"} <= {node["name"] for node in data["nodes"]}


def test_a_forward_that_raises_is_drawn_up_to_there_with_exit_code_1(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["graph", f"{file}:bad", "--shape", "3,4", "--out", "graph.svg"]) == 1
    assert "The forward raised RuntimeError" in capsys.readouterr().out
    assert "the forward raised here" in Path("graph.svg").read_text()


def test_a_saved_run_is_drawn_too(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with tt.watch(model, "*:input,output") as watch:
        model(torch.ones(1, 2))
    watch.run.save("run.safetensors")
    assert run(["graph", "run.safetensors", "--out", "graph.svg"]) == 0
    assert "Execution of Sequential" in capsys.readouterr().out
    assert run(["graph", "run.safetensors", "--autograd"]) == 2


def test_another_ending_is_refused_before_the_model_runs(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["graph", f"{file}:none_such", "--shape", "3,4", "--out", "graph.gif"]) == 2
    assert ".svg" in capsys.readouterr().err
