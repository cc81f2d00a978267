"""``docs/errors.md`` is what the programs say today."""

from __future__ import annotations

import pytest
from error_programs.page import PAGE, page


@pytest.mark.slow
def test_the_page_is_made_from_the_programs() -> None:
    written = PAGE.read_text()
    assert page() == written, "intended? Run `python tests/support/error_programs/page.py`."


def test_the_page_shows_each_program_with_message_note_and_way_out() -> None:
    text = PAGE.read_text()
    assert text.count("<details>") == text.count("```py\n") == text.count("```diff\n") >= 40
    assert text.count("\ntorchtap: ") >= 40
    assert "fault of torchtap" not in text
