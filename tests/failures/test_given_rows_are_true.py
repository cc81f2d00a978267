"""No row ``given`` of a note is contradicted by the values that the frames still hold."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from error_programs import EVERY
from error_programs.program import Program, error_of
from posted_programs import POSTED

from causes_further_out import PROGRAMS as FAR
from torchtap.failures.assignments import names_in
from torchtap.failures.failure import Failure
from torchtap.failures.scopes import Expression
from torchtap.failures.value_chains import Link, followed

SCRIPTS = Path(__file__).parents[1] / "scripts"
NUMBERS = ("", "second_", "third_", "fourth_", "fifth_")
UNKNOWN: Any = object()


def unread(folder: str) -> Iterator[Program]:
    for posted in tomllib.loads((SCRIPTS / folder / "programs.toml").read_text())["program"]:
        source = (SCRIPTS / folder / f"{posted['name']}.py").read_text()
        yield Program(posted["name"], "", source, "", "", ())


SETS: dict[str, list[Program]] = {
    **{folder: list(unread(folder)) for folder in (f"{name}unread_programs" for name in NUMBERS)},
    "posted": [one.program for one in POSTED],
    "pages": EVERY,
    "further out": [Program(one.name, "", one.source, "", "", one.changes) for one in FAR],
}


@pytest.fixture(autouse=True)
def as_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs save files where they run; torch.compile ends the checks of distributions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.distributions.Distribution._validate_args", True)


def value_of(one: Expression) -> Any:
    """The value by Python itself, where a frame still runs; ``UNKNOWN`` of any other."""
    if None in one.path:
        return UNKNOWN
    frame = one.scope.frame
    if frame is None and not isinstance(one.node, ast.Constant):
        return UNKNOWN
    scope = one.scope
    for name in names_in(one.node):
        # Of a name that was given another value since then, the first is gone.
        if scope.assignments(name, one.line) != scope.assignments(name, scope.line):
            return UNKNOWN
    code = compile(ast.Expression(one.node), one.scope.file, "eval")
    held = {} if frame is None else {**frame.frame.f_globals, **frame.frame.f_locals}
    try:
        value = eval(code, held)
        for key in one.path:
            value = value[key]
    except Exception:  # noqa: BLE001 - that which cannot run again tells nothing
        return UNKNOWN
    return value


def is_contradicted(link: Link) -> bool:
    held, given = value_of(link.known), value_of(link.step)
    if not link.is_same or held is UNKNOWN or given is UNKNOWN:
        return False
    if isinstance(held, torch.Tensor) and isinstance(given, torch.Tensor):
        # Any other expression is computed anew, perhaps with other random numbers.
        if isinstance(link.step.node, ast.Name):
            return held is not given
        return (held.shape, held.dtype) != (given.shape, given.dtype)
    if isinstance(held, bool | int | float | str | None):
        return type(held) is not type(given) or held != given
    return type(held) is not type(given)


def program_named(title: str) -> Program:
    return next(one for programs in SETS.values() for one in programs if one.title == title)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SETS)
def test_no_statement_is_contradicted_by_a_live_value(name: str, tmp_path: Path) -> None:
    checked = 0
    for program in SETS[name]:
        failure = Failure(error_of(program, tmp_path))
        for row in followed(failure, ""):
            for link in row.links:
                assert not is_contradicted(link), (program.title, row.text, link.words)
                checked += value_of(link.step) is not UNKNOWN
    assert checked


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("title", "said", "never"),
    [
        ("adjacencies_joined_uncoalesced", "tensor is an item of [", "tensor is ["),
        ("attacked_picture_normalised", "t is an item of image * 1.0", "t is image * 1.0"),
        ("loss_curves_of_tensors", "value is an item of results['train_loss']", '{"train_loss"'),
        ("inpainting_discriminator_step", "torchtap:", "given losses['g'] is {"),
        ("one_hot_of_float_labels", "(2, 5, 5)).float() of train.py:35", "which is torch.randint"),
        ("background_of_225", "labels comes from label of", "labels is label"),
    ],
)
def test_an_item_a_key_and_a_conversion_are_told(
    title: str, said: str, never: str, tmp_path: Path
) -> None:
    note = " ".join("\n".join(error_of(program_named(title), tmp_path).__notes__).split())
    assert said in note
    assert never not in note


@pytest.mark.parametrize(
    "write",
    [
        'sizes["width"] = one',
        "sizes.update(width=one)",
        "fill(sizes)",
        "other = sizes.setdefault('width', one); sizes['width'] = one",
    ],
)
def test_an_item_that_is_written_later_is_not_that_of_the_literal(
    write: str, tmp_path: Path
) -> None:
    source = f"""
    def fill(held):
        held["width"] = torch.ones(2)

    def product(x, weight):
        return x @ weight

    one = torch.ones(2)
    sizes = {{"width": torch.zeros(3)}}
    {write}
    product(torch.ones(4), sizes["width"])
    """
    note = " ".join(error_of(Program("", "", source, "", "", ()), tmp_path).__notes__[0].split())
    assert "which is torch.zeros(3)" not in note
    assert "weight is torch.zeros(3)" not in note
    kept = error_of(Program("", "", source.replace(write, ""), "", "", ()), tmp_path)
    assert "weight is torch.zeros(3) of train.py:" in " ".join(kept.__notes__[0].split())


def test_a_false_statement_is_seen(tmp_path: Path) -> None:
    source = """
    def product(x, weight):
        return x @ weight

    other = torch.ones(2)
    held = torch.ones(2)
    product(torch.ones(4), held)
    """
    failure = Failure(error_of(Program("", "", source, "", "", ()), tmp_path))
    links = [link for row in followed(failure, "") for link in row.links]
    told = next(link for link in links if link.known.text == "x")
    assert not is_contradicted(told)
    other = ast.copy_location(ast.Name("other", ast.Load()), told.step.node)
    assert is_contradicted(told._replace(step=told.step._replace(node=other)))
