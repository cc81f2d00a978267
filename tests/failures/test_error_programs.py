"""Each of the programs: the note names the right module and line, and a way out makes it run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from error_programs import EVERY
from error_programs.program import WROTE, Program, error_of, run
from posted_programs import POSTED

from refused_programs import programs
from torchtap.failures.failure import Failure
from torchtap.failures.message_patterns import MESSAGES, recognise

every_program = pytest.mark.parametrize("program", EVERY, ids=lambda one: one.title)
pytestmark = pytest.mark.filterwarnings("ignore")  # Those of PyTorch, of what the programs do.


def flat(note: str) -> str:
    return " ".join(note.split())


@every_program
def test_the_note_names_module_and_line_and_the_way_out(program: Program, tmp_path: Path) -> None:
    error = error_of(program, tmp_path)
    (note,) = error.__notes__
    text = flat(note)
    recognised = recognise(Failure(error))
    assert recognised is not None
    assert recognised.name == program.message
    assert f"line train.py:{program.line()}" in text
    assert ("module " + program.module in text) if program.module else "\n  module" not in note
    assert flat(program.way) in text
    for part in program.says:
        assert flat(part) in text
    if WROTE in program.text:
        assert f"train.py:{program.line(WROTE)}" in text
    assert "fault of torchtap" not in note


@every_program
def test_the_way_out_makes_the_program_do_what_it_is_for(program: Program, tmp_path: Path) -> None:
    names = run(program.fixed_with_result, tmp_path)
    assert "assert" in program.purpose
    exec(program.purpose, names)


def test_there_are_many_and_each_is_named_once() -> None:
    titles = [one.title for one in EVERY]
    assert len(set(titles)) == len(titles) >= 40


def test_every_pattern_is_raised_by_a_program_with_the_real_pytorch() -> None:
    raised = {one.message for one in EVERY} | {one.message for one in POSTED}
    raised |= {one.message for one in programs()}
    patterns = {*MESSAGES}
    assert patterns - raised == NOT_RAISED_HERE
    assert raised <= patterns


NOT_RAISED_HERE = {
    *("out of memory", "fault of a kernel"),
    *("models of ranks", "sizes of ranks", "rank that ended"),
}
"""Messages of GPUs, and of several processes."""


@pytest.mark.parametrize("prefix", ["", "addmm: ", "at::native::addmm(): "])
def test_a_message_is_recognised_behind_the_name_of_an_operator(prefix: str) -> None:
    """PyTorch 2.15 puts names before messages that had none."""
    try:
        torch.ones(2, 3) @ torch.ones(4, 5)
    except RuntimeError as error:
        said = str(error).rpartition(": ")[2]
        found = recognise(Failure(RuntimeError(prefix + said).with_traceback(error.__traceback__)))
    assert found is not None
    assert found.name == "matrix product"
    assert (found.match["left"], found.match["right"]) == ("3", "4")
