"""Every example, command, link and picture of the README and the docs is real."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from pages import (
    PAGES,
    ROOT,
    anchors,
    blocks,
    commands,
    differences,
    inline_commands,
    links,
    prose,
    run_python,
)

from torchtap.cli import app as cli

_WIDTH = 100


def pages_with(
    found: Callable[[str], object], slow: Callable[[str], bool] = lambda name: False
) -> pytest.MarkDecorator:
    chosen = {str(page.relative_to(ROOT)): page for page in PAGES if found(page.read_text())}
    marked = [
        pytest.param(page, id=name, marks=[pytest.mark.slow] if slow(name) else [])
        for name, page in chosen.items()
    ]
    return pytest.mark.parametrize("page", marked)


every_page = pages_with(lambda text: True)


def test_the_pages_are_found() -> None:
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {"README.md", "docs/design.md", "docs/guides/recipes/hooks.md"} <= names


# What Lightning warns of: PyTorch's tree of values, and data that is loaded in the same process.
@pytest.mark.filterwarnings("ignore:.*LeafSpec", "ignore:.*does not have many workers")
@pages_with(lambda text: blocks(text, "python"), slow=lambda name: name != "README.md")
def test_every_example_runs_and_prints_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, printed = run_python(page)
    for block, real in printed:
        assert not list(differences(block.printed, real)), f"{page}:{block.line}"


@pytest.mark.slow
@pages_with(commands)
def test_every_command_runs_and_prints_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests" / "support").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "support" / "models.py", tmp_path / "tests" / "support")
    shutil.copytree(ROOT / "tests" / "scripts", tmp_path / "tests" / "scripts")
    monkeypatch.chdir(tmp_path)
    for words, shown in commands(page.read_text()):
        capsys.readouterr()
        if words[0] == "run":  # It ends with the process.
            code, out, err = run_apart(words)
        else:
            code = cli.run(words)
            out, err = capsys.readouterr()
        assert code == 0, err
        if shown:
            assert not list(differences(shown, out.splitlines())), words
    for large in tmp_path.rglob("*.safetensors"):
        large.unlink()


def run_apart(words: Sequence[str]) -> tuple[int, str, str]:
    """Run a command in a process of its own: exit code, and what stands on a terminal."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "torchtap", *words], capture_output=True, text=True, env=env
    )
    return done.returncode, done.stdout + done.stderr, done.stderr


@pages_with(inline_commands)
def test_every_command_in_a_sentence_has_options_that_exist(page: Path) -> None:
    for words in inline_commands(page.read_text()):
        assert not complaint(words), words


@every_page
def test_every_link_and_picture_is_there(page: Path) -> None:
    for target in links(page.read_text()):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file.read_text()), target


@every_page
def test_every_file_named_in_a_sentence_is_there(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|docs|benchmarks|\.ci)/[\w./]+)`", prose(page.read_text()))
    for name in named:
        assert (ROOT / name).exists(), name


@every_page
def test_every_make_target_is_in_the_makefile(page: Path) -> None:
    known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    named = re.findall(r"`make ([\w-]+)`", prose(text))
    named += [
        line.removeprefix("make ")
        for block in blocks(text, "sh", "console")
        for line in block.text.splitlines()
        if line.startswith("make ")
    ]
    assert set(named) <= known


@every_page
def test_no_line_of_code_or_output_is_too_wide(page: Path) -> None:
    for block in blocks(page.read_text()):
        for line in block.text.splitlines():
            assert len(line.removeprefix("# ")) <= _WIDTH, line


@every_page
def test_every_block_says_what_it_is_and_is_closed(page: Path) -> None:
    text = page.read_text()
    assert text.count("```") == 2 * len(blocks(text))
    languages = {"python", "sh", "console"}
    if page.parent.name == "errors":  # Of programs that fail; tests/failures runs them.
        languages |= {"py", "text", "diff"}
    assert {block.language for block in blocks(text)} <= languages


def test_the_pages_show_no_name_that_does_not_exist() -> None:
    import torchtap as tt

    for page in PAGES:
        if page.name == "design.md":  # It speaks of what was rejected, too.
            continue
        for name in re.findall(r"\btt\.(\w+)", page.read_text()):
            assert hasattr(tt, name), f"{page.name}: tt.{name}"


def public_lines() -> dict[Any, Any]:
    """Name -> what the first paragraph of its docstring says, of everything public."""
    import torchtap as tt

    homes = {"tt.": tt, "tt.stats.": tt.stats, "tt.plot.": tt.plot, "tt.codecs.": tt.codecs}
    names = {
        f"{prefix}{name}": getattr(home, name)
        for prefix, home in homes.items()
        for name in home.__all__
        if name != "__version__" and (home is tt or name not in tt.__all__)
    }
    return {name: plain(inspect.getdoc(value)) for name, value in names.items()}


def plain(docstring: Any) -> Any:
    """The first paragraph, in Markdown."""
    first = docstring.partition("\n\n")[0].replace("\n", " ")
    return re.sub(r":\w+:`~?(?:[^`]*\.)?([^`.]+)`", r"`\1`", first).replace("``", "`")


def test_the_list_of_the_public_face_is_complete_and_says_what_the_docstrings_say() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text()
    rows = re.findall(r"^\| (?:\[`(tt[\w.]+)`\]\([^)]+\)|`(tt\.\w+Error)`) \| (.*) \|$", text, re.M)
    assert len(rows) == text.count("| `tt.") + text.count("| [`tt.")
    listed = {linked or error: said for linked, error, said in rows}
    assert len(listed) == len(rows)
    expected = public_lines()
    assert listed.keys() == expected.keys()
    for name, said in listed.items():
        assert said == expected[name], name


def test_the_glossary_has_every_noun_of_the_design() -> None:
    names = ("design.md", "explanations/glossary.md")
    design, glossary = ((ROOT / "docs" / name).read_text() for name in names)
    nouns = re.findall(r"`(\w+)`", design.partition("## Nouns")[2].partition("as\nin the [gl")[0])
    assert nouns[0] == "module"
    assert len(nouns) == 13
    assert [noun for noun in nouns if f"| **{noun}** |" not in glossary] == []


def test_the_index_of_the_recipes_is_complete() -> None:
    folder = ROOT / "docs" / "guides" / "recipes"
    named = set(links((folder / "README.md").read_text()))
    assert named == {page.name for page in folder.glob("*.md")} - {"README.md"}


# ---------------------------------------------------------------------- these can fail


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        (["a 1.500"], ["a 1.600"]),
        (["a"], []),
        (["a"], ["a", "b"]),
        (["a", "c"], ["a", "b", "c"]),
        (["a", "...", "d"], ["a", "b", "c"]),
        (["3 sites"], ["4 sites"]),
        (["conv1 [0.5]"], ["conv2 [0.5]"]),
    ],
)
def test_other_output_is_noticed(shown: list[str], real: Any) -> None:
    assert list(differences(shown, real))


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        (["a  1.500"], ["a 1.5001"]),
        (["mean -1.2e-11"], ["mean 3.0e-12"]),
        (["a", "...", "d"], ["a", "b", "c", "d"]),
        (["a", "..."], ["a", "b"]),
        (["tensor(-3.4686)"], ["tensor(-3.4687)"]),
    ],
)
def test_rounding_and_gaps_are_no_other_output(shown: list[str], real: list[str]) -> None:
    assert not list(differences(shown, real))


@pytest.mark.parametrize("words", [("lss", "RUN"), ("ls", "--nothing"), ("--nothing",), ("ls",)])
def test_a_wrong_command_is_noticed(words: tuple[str, ...]) -> None:
    assert complaint(words)


def test_a_docstring_is_read_as_markdown() -> None:
    assert (
        plain("What :func:`~a.b.verify` and ``f(x)``\nsay.\n\nMore.")
        == "What `verify` and `f(x)` say."
    )


def test_a_link_is_found_with_its_anchor() -> None:
    assert links("see [this](a.md#b), ![p](c.png) and [web](https://x.org)") == ["a.md#b", "c.png"]
    assert anchors("# Where: patterns\n") == {"where-patterns"}


def complaint(words: Any) -> Any:
    """Everything that is wrong with a command; its options are read and nothing is run."""
    name, *rest = words
    command = cli.cli.get_command(click.Context(cli.cli), name)
    try:
        if name.startswith("-"):
            cli.cli.make_context("torchtap", list(words), resilient_parsing=False)
        elif command is None:
            return f"there is no command {name}"
        else:
            command.make_context(name, list(rest))
    except click.exceptions.Exit:
        return ""
    except click.ClickException as error:
        return error.format_message()
    return ""
