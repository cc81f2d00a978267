"""``docs/reference/errors/`` is what the programs say today."""

from __future__ import annotations

import difflib
import re

import pytest
from error_programs.page import FOLDER, every_shown, pages

from torchtap.failures.message_patterns import MESSAGES

LARGEST = 300_000
AGAIN = "intended? Run `python tests/support/error_programs/page.py`."


def written() -> dict[str, str]:
    return {file.name: file.read_text() for file in FOLDER.glob("*.md")}


@pytest.mark.slow
def test_the_pages_are_made_from_the_programs() -> None:
    made, stored = pages(), written()
    assert sorted(made) == sorted(stored), AGAIN
    for name, text in made.items():  # Page by page: the difference of all is unreadable.
        changed = difflib.unified_diff(stored[name].splitlines(), text.splitlines(), lineterm="")
        assert text == stored[name], "\n".join([AGAIN, name, *changed])


def test_the_pages_show_each_program_with_message_note_and_way_out() -> None:
    text = "".join(written().values())
    count = len(list(every_shown()))
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


def test_the_index_has_each_message_that_a_program_raises_and_no_page_is_too_long() -> None:
    pages = written()
    shown = {one.program.message for one in every_shown()}
    assert shown <= set(MESSAGES)
    targets = re.findall(r"\]\([\w.]+#([\w-]+)\)", pages["README.md"])
    assert set(targets) == {re.sub(r"\W+", "-", name.lower()) for name in shown}
    assert len(targets) == len(set(targets))
    assert max(len(text.encode()) for text in pages.values()) < LARGEST
