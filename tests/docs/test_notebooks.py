"""The notebooks of the docs run, and print and draw what is stored in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import notebooks
import pytest
from pages import differences, links


def stored(name: str) -> Any:
    return nbformat.read(notebooks.FOLDER / f"{name}.ipynb", as_version=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_notebook_runs_and_shows_what_is_stored(name: str, tmp_path: Path) -> None:
    book, kept = notebooks.run(name, tmp_path), stored(name)
    assert notebooks.num_pictures(book) == notebooks.num_pictures(kept)
    pairs = zip(notebooks.printed(kept), notebooks.printed(book), strict=True)
    for number, (shown, real) in enumerate(pairs):
        assert not list(differences(shown, real)), f"cell {number}"


def test_the_index_of_the_notebooks_is_complete() -> None:
    named = links((notebooks.FOLDER / "README.md").read_text())
    assert sorted(named) == [f"{name}.ipynb" for name in notebooks.NAMES]
    assert len(named) == 4


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_a_stored_notebook_has_outputs_and_no_path_of_a_machine(name: str) -> None:
    text = (notebooks.FOLDER / f"{name}.ipynb").read_text()
    assert any(notebooks.printed(stored(name)))
    assert "site-packages" not in text
    assert "/home/" not in text and "/root/" not in text
