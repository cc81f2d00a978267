"""``torchtap compare``: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchtap.cli import app as cli

SOURCE = """
import torch
from torch import nn

def original(eps=1e-5):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, eps=eps), nn.Linear(8, 2))

class Port(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        one = original()
        self.layers = nn.ModuleList([one[0], one[2]])
        self.norm = one[1]
        with torch.no_grad():
            self.layers[1].weight.mul_(scale)

    def forward(self, x):
        return self.layers[1](self.norm(self.layers[0](x)))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(SOURCE)
    return tmp_path


def test_models_that_agree_exit_with_0_and_others_with_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ["compare", "nets.py:original", "nets.py:Port", "--shape", "3,4"]
    assert cli.run(models) == 0
    assert "do not differ" in capsys.readouterr().out
    names = ["--map", "0=layers.0", "--map", "2=layers.1", "--map", "1=norm"]
    assert cli.run([*models, *names, "--other-arg", "scale=2.0", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    first = found["first"]
    assert (first["path"], first["other"], first["cause"]) == ("2", "layers.1", "weights")
    assert not found["same"]
    assert cli.run([*models, "--other-arg", "scale=2.0", "--tolerance", "0.9"]) == 0
    assert cli.run([*models, "--map", r"([0])=layers.\1"]) == 0


def test_runs_are_compared_as_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = ["record", "nets.py:original", "*:input,output", "--shape", "3,4"]
    assert cli.run([*record, "--to", "one.safetensors"]) == 0
    assert cli.run([*record, "--to", "two.safetensors", "--arg", "eps=0.1"]) == 0
    capsys.readouterr()
    assert cli.run(["compare", "one.safetensors", "one.safetensors"]) == 0
    assert cli.run(["compare", "one.safetensors", "two.safetensors"]) == 1
    out = capsys.readouterr().out
    assert "one.safetensors and two.safetensors differ, first in step 0 at 1:output" in out
    assert "eps is 1e-05" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nets.py:original", "one.safetensors"], "two runs or two models"),
        (["nets.py:original", "nets.py:Port"], "--shape"),
        (["nets.py:original", "nets.py:Port", "--shape", "3,4", "--map", "0"], "PATH=OTHER"),
        (["nets.py:original", "nets.py:Port", "--shape", "3,4", "--map", "7=x"], "fits no path"),
        (["nets.py:original", "nets.py:Port", "--shape", "3,5"], "raised RuntimeError"),
        (["none.safetensors", "none.safetensors"], "no file none.safetensors"),
    ],
)
def test_bad_input_exits_with_2_and_says_what_is_expected(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["compare", *words]) == 2
    assert message in capsys.readouterr().err
