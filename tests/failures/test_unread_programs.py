"""Programs as people posted them, and that no note was written with: cause, way out, purpose."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from error_programs.program import Program, error_of, run

FOLDER = Path(__file__).parents[1] / "scripts" / "unread_programs"
POSTED: list[dict[str, Any]] = tomllib.loads((FOLDER / "programs.toml").read_text())["program"]
ORACLE = """
import copy
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def close(a, b):
    return torch.allclose(a.detach().double(), b.detach().double(), rtol=1e-4, atol=1e-5)


"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("posted", POSTED, ids=[posted["name"] for posted in POSTED])
def test_a_note_says_the_cause_and_its_way_out_serves_the_purpose(
    posted: dict[str, Any], tmp_path: Path
) -> None:
    source = (FOLDER / f"{posted['name']}.py").read_text()
    changes = tuple((old, new) for old, new in posted["changes"])
    program = Program(posted["name"], "", source, "", "", changes)
    note = " ".join("\n".join(error_of(program, tmp_path).__notes__).split())
    said, _, ways = note.partition(" ways out ")
    assert "not in the catalogue" not in said, note
    assert all(re.search(cause, note) for cause in posted["cause"]), note
    assert any(re.search(way, ways) for way in posted["way"]), note
    names = run(program.fixed, tmp_path)
    exec(ORACLE + posted["purpose"], names)
