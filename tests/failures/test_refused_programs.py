"""Short programs that PyTorch refuses: the note, its way out, and the program that follows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from error_programs.program import PRELUDE, Program, error_of, run

from refused_programs import Refused, programs
from torchtap.failures.failure import Failure
from torchtap.failures.message_patterns import MESSAGES, recognise


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("refused", programs(), ids=lambda one: one.message)
def test_a_note_says_the_cause_and_its_way_out_serves_the_purpose(
    refused: Refused, tmp_path: Path
) -> None:
    error = error_of(Program(refused.message, "", refused.source, "", "", ()), tmp_path)
    known = recognise(Failure(error))
    assert known is not None
    assert known.name == refused.message
    (note,) = error.__notes__
    assert "fault of torchtap" not in note
    assert refused.way in " ".join(note.partition("ways out")[2].split())
    assert "assert " in refused.repaired
    run(PRELUDE + refused.repaired, tmp_path)


def test_each_message_is_one_of_the_catalogue_and_has_one_program() -> None:
    names = [one.message for one in programs()]
    assert len(set(names)) == len(names) > 150
    assert set(names) <= set(MESSAGES)
