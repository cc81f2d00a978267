"""The sentences of the pages: as PyTorch's documentation has them, and short enough."""

from __future__ import annotations

import prose
import pytest
from pages import PAGES, ROOT

_MAX_GRADE, _MAX_WORDS = 9.0, 15.0
# Lists what changed, in the words of its day.
_OTHERS = {"CHANGELOG.md"}

NAMES = {page.relative_to(ROOT).as_posix(): page for page in PAGES if page.parent.name != "errors"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in _OTHERS])
def test_no_sentence_begins_as_another_language_does(name: str) -> None:
    assert prose.bad_openers(NAMES[name].read_text()) == []


@pytest.mark.parametrize("name", list(NAMES))
def test_every_page_is_read_without_a_degree(name: str) -> None:
    assert prose.read(NAMES[name].read_text()).grade <= _MAX_GRADE


@pytest.mark.parametrize("name", [name for name in NAMES if name not in _OTHERS])
def test_every_page_has_short_sentences(name: str) -> None:
    assert prose.read(NAMES[name].read_text()).mean <= _MAX_WORDS


def test_the_grade_is_that_of_the_formula() -> None:
    # Two sentences, eight words, thirteen syllables, counted by hand.
    text = "The model has a number.\nIt is overwritten.\n"
    one = prose.read(text)
    assert (one.num_words, one.num_sentences) == (8, 2)
    assert one.grade == pytest.approx(0.39 * 8 / 2 + 11.8 * 13 / 8 - 15.59)


@pytest.mark.parametrize(
    ("text", "count"),
    [("What is lost raises.", 1), ("Whatever.", 0), ("A value raises. Of it all is kept.", 1)],
)
def test_a_bad_opener_is_noticed(text: str, count: int) -> None:
    assert len(prose.bad_openers(text)) == count


def test_code_and_tables_are_no_sentences() -> None:
    code = "```python\nOf = 1\n```\n"
    text = f"# Of a head\n\n| Of a row | what |\n\n{code}\nA [link of it](a.md) is here.\n"
    assert prose.sentences(text) == ["A link of it is here."]
