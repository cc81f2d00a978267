"""Ways out with operands that are no names: they stay Python, and mean what they say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from error_programs import EVERY
from error_programs.program import PRELUDE, RAISES, Program, error_of

from torchtap.failures.parsed_source import grouped, replaced

pytestmark = pytest.mark.filterwarnings("ignore")
COMPOUND = "{} if True else None"
"""It has the very value of the operand, and comes apart where a method is called on it."""
APART = re.compile(r"if True else None( = |[\[.]\w| [<>/*+-] )")


def ways_of(source: str, folder: Path) -> list[str]:
    program = Program("of a test", "", source, "", "", ())
    notes = getattr(error_of(program, folder), "__notes__", [""])
    note = notes[0]
    return [
        " ".join(one.split())
        for one in re.split(r"\n    \d\.", "\n" + note.partition("  ways out\n")[2])[1:]
    ]


def compounded(program: Program) -> str:
    """A program whose failing line has each variable in an expression without parentheses."""
    lines = program.text.splitlines()
    number = program.line()
    tree = ast.parse(program.text)
    inside = [one for one in ast.walk(tree) if getattr(one, "lineno", 0) == number]
    called = [one.func for one in inside if isinstance(one, ast.Call)]
    names = [
        one
        for one in inside
        if isinstance(one, ast.Name)
        and isinstance(one.ctx, ast.Load)
        and one not in called
        and one.id not in ("torch", "nn", "F", "copy", "self", "numpy", "super")
    ]
    text = lines[number - 1]
    for one in sorted(names, key=lambda one: -one.col_offset):
        end = one.end_col_offset
        text = f"{text[: one.col_offset]}({COMPOUND.format(one.id)}){text[end:]}"
    lines[number - 1] = text
    return "\n".join(lines).removeprefix(PRELUDE)


@pytest.mark.slow
def test_ways_out_hold_together_with_compound_operands_in_every_situation(tmp_path: Path) -> None:
    apart: list[str] = []
    with_operand = 0
    for program in EVERY:
        text = compounded(program)
        if "if True else None" not in text:
            continue
        for way in ways_of(text, tmp_path):
            with_operand += "if True else None" in way
            if APART.search(way) or not all(map(is_python, code_of(way))):
                apart.append(way)
    assert not apart
    assert with_operand > 20


def code_of(way: str) -> Iterator[str]:
    """The parts of a way out that stand as code and name the operand."""
    parts = re.split(
        r": |, or | or (?=\()|, and | in place of | \(\.|; | against | before |\.$", way
    )
    yield from (one for one in parts if "if True else None" in one and one.startswith("("))


def is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize(
    ("made", "line", "way"),
    [
        ("(3.0, requires_grad=True)", "(a*b).backward()", "(a*b).mean().backward()"),
        ("(3.0)", "(a*b).item()", "(a*b).tolist()"),
        ("(3.0, requires_grad=True)", "(a+b).numpy()", "(a+b).detach().numpy()"),
        ("(3.0, requires_grad=True)", "(a*2).numpy()", "(a*2).detach().numpy()"),
        ("(3)", "(a+1).mean()", "(a+1).float().mean()"),
        ("(6.0)", "(a.view(2, 3).t()+b.view(2, 3).t()).view(6)", "b.view(2, 3).t()).reshape(...)"),
        ("(3.0)", "a.new_ones(2, 3)[(a > 1)[:2]] + (a*b)[(a*2)]", "(a*2).long()"),
    ],
)
def test_a_method_is_called_on_the_whole_operand(
    made: str, line: str, way: str, tmp_path: Path
) -> None:
    maker = made.replace(")", ", dtype=torch.int64)") if made == "(3)" else made
    source = f"a = torch.arange{maker}\nb = torch.arange{maker}\n{line}{RAISES}\n"
    assert way in ways_of(source, tmp_path)[0]


@pytest.mark.parametrize(
    ("text", "before_a_method", "assigned"),
    [
        ("x", "x", "x = x.t()"),
        ("x[0].grad", "x[0].grad", "x[0].grad = x[0].grad.t()"),
        ("f(x)", "f(x)", "f(x).t()"),
        ("a + b", "(a + b)", "(a + b).t()"),
        ("-a", "(-a)", "(-a).t()"),
        ("(a)*(b)", "((a)*(b))", "((a)*(b)).t()"),
        ("(a*b)", "(a*b)", "(a*b).t()"),
        ("3", "(3)", "(3).t()"),
        ("<tensor>", "<tensor>", "<tensor>.t()"),
    ],
)
def test_parentheses_stand_where_they_are_needed(
    text: str, before_a_method: str, assigned: str
) -> None:
    assert grouped(text) == before_a_method
    assert replaced(text, "t()") == assigned
