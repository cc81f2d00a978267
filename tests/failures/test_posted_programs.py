"""Programs as people posted them: the note says the cause, and its first way out repairs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from posted_programs import POSTED, Posted, verdict

pytestmark = pytest.mark.filterwarnings("ignore")  # Those of PyTorch, of what the programs do.


@pytest.mark.parametrize("posted", POSTED, ids=lambda one: one.name)
def test_the_note_is_right_and_its_first_way_out_does_what_the_program_is_for(
    posted: Posted, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    found = verdict(posted, tmp_path)
    assert found.message == posted.message
    assert (found.word, found.why) == ("helpful", "")


def test_each_program_has_a_page_and_a_name_of_its_own() -> None:
    assert len({one.name for one in POSTED}) == len(POSTED)
    assert all(one.url.startswith("https://") for one in POSTED)
