"""``docs/reference/errors/`` is what the programs say today."""

from __future__ import annotations

import re

import pytest
from error_programs import EVERY
from error_programs.page import FOLDER, pages
from posted_programs import POSTED


def written() -> dict[str, str]:
    return {file.name: file.read_text() for file in FOLDER.glob("*.md")}


@pytest.mark.slow
def test_the_pages_are_made_from_the_programs() -> None:
    assert pages() == written(), "intended? Run `python tests/support/error_programs/page.py`."


def test_the_pages_show_each_program_with_message_note_and_way_out() -> None:
    text = "".join(written().values())
    count = len(EVERY) + len(POSTED)
    assert text.count("<details>") == text.count("```py\n") == text.count("```diff\n") == count
    assert text.count("\ntorchtap: ") >= count
    assert "fault of torchtap" not in text


def test_the_index_leads_to_each_message_of_each_page() -> None:
    index = written().pop("README.md")
    targets = {
        f"{name}#{anchor}"
        for name, text in written().items()
        for anchor in re.findall(r'<a id="([^"]+)">', text)
    }
    assert set(re.findall(r"\]\(([\w.]+#[\w-]+)\)", index)) == targets
