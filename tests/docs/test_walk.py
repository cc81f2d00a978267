"""The walk through autograd: its index, and pictures that are those which its pages draw."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import ROOT, links, run_python

FOLDER, IMAGES = ROOT / "docs" / "explanations" / "autograd", ROOT / "docs" / "images"


def drawn_by(page: Path) -> set[str]:
    return set(re.findall(r'\.save\("(walk_\w+\.svg)"\)', page.read_text()))


PAGES = [page for page in sorted(FOLDER.glob("*.md")) if drawn_by(page)]


def words(picture: Path) -> list[str]:
    """Text of a picture, without places in it and lines of the page."""
    text = re.sub(r"<style>.*?</style>|(?<=\.md):\d+", "", picture.read_text(), flags=re.DOTALL)
    return sorted(found.strip() for found in re.findall(r">([^<]+)<", text) if found.strip())


def test_the_index_of_the_walk_is_complete() -> None:
    named = set(links((FOLDER / "README.md").read_text()))
    assert {page.name for page in FOLDER.glob("*.md")} - {"README.md"} <= named


def test_every_kept_picture_is_drawn_by_a_page_that_shows_it() -> None:
    kept = {picture.name for picture in IMAGES.glob("walk_*.svg")}
    assert kept == set().union(*map(drawn_by, PAGES))
    for page in PAGES:
        shown = {Path(link).name for link in links(page.read_text())}
        assert drawn_by(page) <= shown


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_picture_of_the_walk_says_what_its_page_draws(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_python(page)
    for name in drawn_by(page):
        drawn = words(tmp_path / name)
        assert len(drawn) > 3
        assert drawn == words(IMAGES / name), f"{name}: run docs/images/make_walk.py"


def test_a_word_in_another_picture_is_noticed(tmp_path: Path) -> None:
    other = tmp_path / "other.svg"
    kept = IMAGES / "walk_backward.svg"
    other.write_text(kept.read_text().replace("SinBackward0", "CosBackward0"))
    assert words(other) != words(kept)
