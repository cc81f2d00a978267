"""``torchtap diagnose RUN``: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from small_trainings import blobs, classifier, train
from torch import nn

from torchtap.cli import app as cli


def test_an_alarm_is_printed_and_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    run = train(classifier().append(nn.Softmax(1)), steps=12)
    path = str(run.save(tmp_path / "run.safetensors"))
    assert cli.run(["diagnose", path]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("alarm: double_softmax at 3, steps 0 to 11")
    assert "cross_entropy takes logits" in printed
    assert cli.run(["diagnose", path, "--json"]) == 1
    first = json.loads(capsys.readouterr().out)["findings"][0]
    assert (first["rule"], first["path"], first["severity"]) == ("double_softmax", "3", "alarm")


def test_a_healthy_run_is_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    path = str(train(classifier()).save(tmp_path / "run.safetensors"))
    assert cli.run(["diagnose", path]) == 0
    assert capsys.readouterr().out.startswith("Nothing was found.")


def test_since_leaves_out_what_was_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = blobs(num=32 * 40)
    x[32 * 20 : 32 * 21] *= 1e4
    path = str(train(classifier(), data=(x, y)).save(tmp_path / "run.safetensors"))
    assert cli.run(["diagnose", path, "--json"]) == 1
    assert "bad_batch" in capsys.readouterr().out
    cli.run(["diagnose", path, "--json", "--since", "21"])
    assert "bad_batch" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [["nothing.safetensors"], [], ["--since", "-1", "x"]])
def test_what_cannot_be_asked_is_exit_code_2(words: list[str]) -> None:
    assert cli.run(["diagnose", *words]) == 2
