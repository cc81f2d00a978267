"""``tt.selfcheck``: the laws on the installation of whoever asks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import torchtap as tt
from torchtap.core import torch_private
from torchtap.core.private_names import NAMES
from torchtap.stats import measure
from torchtap.testing import selfcheck as room, zoo


def test_everything_holds_here_and_the_page_says_where_here_is() -> None:
    found = tt.selfcheck()
    assert found, found
    assert [law.verdict for law in found.laws] == ["holds"] * 6
    said = repr(found)
    assert max(map(len, said.splitlines())) <= 100
    for word in (*found.versions.values(), "kernel", "us per watched call", "holds on this"):
        assert word in said
    assert found.hook_seconds < 1e-2


def test_the_models_are_specimens_of_the_zoo() -> None:
    assert set(room.MODELS) <= {one.name for one in zoo()}
    assert len(room.MODELS) >= 12


def test_a_law_that_does_not_hold_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tt, "measure", lambda tensor: measure.measure(tensor * 1.001))
    monkeypatch.setattr(room, "MODELS", ("shared_module",))
    found = tt.selfcheck(compiler=False)
    assert not found
    assert "FAILS: Statistics are those of float64: mean" in repr(found)
    assert "not run" in repr(found)


def test_what_raises_is_a_law_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ArithmeticError("out of order")

    monkeypatch.setattr(tt, "open", broken)
    monkeypatch.setattr(room, "MODELS", ("shared_module",))
    found = tt.selfcheck(compiler=False)
    assert not found and "ArithmeticError at test_selfcheck.py" in repr(found)


def test_a_name_that_is_gone_is_said_with_what_is_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "MODELS", ("shared_module",))
    monkeypatch.setattr(torch_private, "negated_view", lambda tensor: tensor.clone())
    found = tt.selfcheck(compiler=False)
    assert list(found.missing) == ["torch._neg_view"]
    assert not found  # tt.offload needs it.
    assert "(needed by tt.offload)" in " ".join(repr(found).split())
    assert NAMES["torch._neg_view"].without in found.without["torch._neg_view"]


def test_the_command_prints_json_and_its_exit_code_is_the_verdict() -> None:
    words = [sys.executable, "-m", "torchtap", "selfcheck", "--no-compiler", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["holds"] is True
    assert found["versions"]["torch"] and len(found["laws"]) == 6
