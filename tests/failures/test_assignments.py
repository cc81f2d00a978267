"""The line that gave a variable its value is told from the source, and only where it is certain."""

from __future__ import annotations

import ast
import linecache
import textwrap
from pathlib import Path

import pytest

from torchtap.failures.assignments import assignments_of
from torchtap.failures.parsed_source import function_tree
from torchtap.failures.traceback_frame import frames_of


def lines_for(source: str, folder: Path) -> list[int]:
    """The lines that may have assigned ``h`` when line ``1 / 0`` raised, inside of ``f``."""
    file = folder / "f.py"
    file.write_text(source)
    linecache.checkcache(str(file))
    names: dict[str, object] = {"__name__": "f"}
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile(source, str(file), "exec"), names)
    frame = frames_of(caught.value)[-1]
    return [one.line for one in assignments_of(frame, "h")]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("h = 1\nh = 2\n1 / 0\n", [2]),
        ("h = 1\nif h:\n    h = 2\n1 / 0\n", [1, 3]),
        ("if 1:\n    h = 1\nelse:\n    h = 2\n1 / 0\n", [2, 4]),
        ("h = 1\nif h:\n    h = 2\n    1 / 0\n", [3]),
        ("for h in (1, 2):\n    1 / 0\n", [1]),
        ("h = 1\nfor i in (1, 2):\n    if i > 1:\n        1 / 0\n    h = 2\n", [1, 5]),
        ("for i in (1, 2):\n    h = i\n    if i > 1:\n        1 / 0\n    h = 3\n", [2]),
        ("h = 0\nfor h in ():\n    pass\n1 / 0\n", [1, 2]),
        ("h = 0\nwhile (h := h + 1) < 3:\n    pass\n1 / 0\n", [2]),
        ("a, h = 1, 2\n1 / 0\n", [1]),
        ("a, *h = 1, 2\n1 / 0\n", [1]),
        ("with open(__import__('os').devnull) as h:\n    1 / 0\n", [1]),
        ("if (h := 1):\n    1 / 0\n", [1]),
        ("h: int = 1\n1 / 0\n", [1]),
        ("try:\n    h = 1\nexcept ValueError:\n    h = 2\n1 / 0\n", [2, 4]),
        ("h = 1\ndef g():\n    h = 2\ng()\n1 / 0\n", [1]),
        ("h = 1\nmatch h:\n    case 1:\n        h = 2\n        1 / 0\n", [4]),
        ("h = 1\nmatch h:\n    case 1:\n        h = 2\n1 / 0\n", [1, 4]),
        ("def f(h):\n    1 / 0\nf(1)\n", []),
        ("def f(h):\n    h = h + 1\n    1 / 0\nf(1)\n", [2]),
    ],
)
def test_all_lines_that_may_have_assigned_a_variable_are_named(
    source: str, lines: list[int], tmp_path: Path
) -> None:
    assert lines_for(source, tmp_path) == lines


def test_of_a_file_what_its_own_frame_runs_is_parsed(tmp_path: Path) -> None:
    source = textwrap.dedent(
        '''
        @decorated(
            1,
        )
        def f(
            a,
        ):
            """Text

        that begins a line.
            """
            return [
                a,
            ]

        class A(list):
            size = 1
            def forward(self, x):
                return {
                    1: x,
                }
            # the end

        if flag:
            async def g(): return 1
        h = lambda x: [y for y in x]; b = f(1)
        '''
    )
    file = tmp_path / "train.py"
    file.write_text(source)
    found = function_tree(compile(source, str(file), "exec"), 1)
    assert isinstance(found, ast.Module)
    whole = ast.parse(source)
    assert [type(one) for one in found.body] == [ast.Pass, ast.Pass, ast.If, ast.Assign, ast.Assign]
    assert [ast.dump(one, include_attributes=True) for one in found.body[3:]] == [
        ast.dump(one, include_attributes=True) for one in whole.body[3:]
    ]
