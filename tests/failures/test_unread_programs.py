"""Programs as people posted them, and that no note was written with: cause, way out, purpose."""

from __future__ import annotations

import gc
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from error_programs.program import Program, error_of, run

SCRIPTS = Path(__file__).parents[1] / "scripts"
SETS = ("", "second_", "third_", "fourth_", "fifth_", "sixth_")
FOLDERS = [f"{name}unread_programs" for name in SETS]
POSTED: list[dict[str, Any]] = [
    program | {"source": (SCRIPTS / folder / f"{program['name']}.py").read_text()}
    for folder in FOLDERS
    for program in tomllib.loads((SCRIPTS / folder / "programs.toml").read_text())["program"]
]
EXPLAINED = [posted for posted in POSTED if "way" in posted]
OTHERS = [posted for posted in POSTED if "way" not in posted]
ORACLE = """
import copy
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def close(a, b):
    return torch.allclose(a.detach().double(), b.detach().double(), rtol=1e-4, atol=1e-5)


"""


@pytest.fixture(autouse=True)
def as_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Programs save files where they run, and torch.export looks for torch in ``__main__``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("__main__.torch", torch, raising=False)
    yield
    if "open(" in request.node.callspec.params["posted"]["source"]:
        gc.collect()  # A picture that is not closed warns where it is freed: here, and not later.


def program_of(posted: dict[str, Any]) -> Program:
    changes = tuple((old, new) for old, new in posted["changes"])
    return Program(posted["name"], "", posted["source"], "", "", changes)


def serves_its_purpose(posted: dict[str, Any], folder: Path) -> None:
    names = run(program_of(posted).fixed, folder)
    exec(ORACLE + posted["purpose"], names)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("posted", EXPLAINED, ids=[posted["name"] for posted in EXPLAINED])
def test_a_note_says_the_cause_and_its_way_out_serves_the_purpose(
    posted: dict[str, Any], tmp_path: Path
) -> None:
    note = " ".join("\n".join(error_of(program_of(posted), tmp_path).__notes__).split())
    said, _, ways = note.partition(" ways out ")
    assert "not in the catalogue" not in said, note
    assert all(re.search(cause, note) for cause in posted["cause"]), note
    assert any(re.search(way, ways) for way in posted["way"]), note
    serves_its_purpose(posted, tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("posted", OTHERS, ids=[posted["name"] for posted in OTHERS])
def test_a_note_without_a_right_way_out_hides_nothing(
    posted: dict[str, Any], tmp_path: Path
) -> None:
    error = error_of(program_of(posted), tmp_path)
    assert str(error)
    serves_its_purpose(posted, tmp_path)
