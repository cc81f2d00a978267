"""Programs whose mistake stands in another function than the line that raises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from error_programs.program import Program, error_of, run

from causes_further_out import PROGRAMS, FarProgram

CAUSE = "  # cause"


def program_of(one: FarProgram) -> Program:
    return Program(one.name, "", one.source, "", "", one.changes)


@pytest.mark.parametrize("one", PROGRAMS, ids=[one.name for one in PROGRAMS])
def test_a_note_names_the_line_of_the_mistake(one: FarProgram, tmp_path: Path) -> None:
    program = program_of(one)
    note = " ".join("\n".join(error_of(program, tmp_path).__notes__).split())
    assert re.search(rf"train\.py:{program.line(CAUSE)}\b", note), note
    assert all(re.search(said, note) for said in one.says), note


@pytest.mark.parametrize("one", PROGRAMS, ids=[one.name for one in PROGRAMS])
def test_the_mistake_is_the_cause(one: FarProgram, tmp_path: Path) -> None:
    names = run(program_of(one).fixed, tmp_path)
    exec(one.purpose, names)
