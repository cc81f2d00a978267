"""Texts that a search finds and a machine reads: metadata, citation, types, the first page."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import user_program
import yaml
from pages import ROOT, blocks

import torchtap as tt

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_a_users_program_uses_every_public_name_and_runs(tmp_path: Path) -> None:
    tree = ast.parse(Path(user_program.__file__).read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "tt"
    }
    assert set(tt.__all__) - used == set()
    user_program.main(tmp_path)


def test_mypy_reads_the_users_program_without_exceptions() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    excepted = {name for part in settings["overrides"] for name in part["module"]}
    assert settings["strict"]
    assert "user_program" not in excepted


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == tt.__version__
    assert citation["license"] == PROJECT["license"]


def test_the_metadata_name_what_the_tests_run_with() -> None:
    pythons = {one.rpartition(" ")[2] for one in PROJECT["classifiers"] if "Python :: 3." in one}
    tried = re.findall(r"\| torch [\d.]+, Python (3\.\d+)", (ROOT / "README.md").read_text())
    assert pythons == set(tried)
    assert len(PROJECT["description"]) <= 120


def test_the_first_page_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    (first,) = blocks(text, "python")
    lines = [line for line in first.text.splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 12  # Three imports, a seed, and the eight that matter.


def test_every_version_in_the_changelog_has_a_date_and_this_one_is_named() -> None:
    heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", head) for head in heads[1:])
