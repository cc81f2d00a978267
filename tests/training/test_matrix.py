"""Real trainings by what torchtap does with them: every cell works, says what is not, or is named.

A row is a training, a column what is attached to it. In a cell that works, losses, gradients,
parameters, buffers, random numbers, hook tables and the compiler's settings are to the bit those of
a run without torchtap; what was recorded or measured is what plain hooks see; and all that was
selected is recorded or absent with a reason that the row declares.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cells import wrong
from page import LINES, table
from row import Row
from rows_compiled import COMPILED
from rows_of_libraries import LIBRARIES
from rows_on_ranks import ON_FOUR, ON_TWO
from rows_plain import PLAIN

from ranks import run_file

EVERY_ROW = [*PLAIN, *COMPILED, *LIBRARIES, *ON_TWO, *ON_FOUR]
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "trainings.md"


def cells(rows: list[Row]) -> list[Any]:
    """One case for each row and column."""
    return [
        pytest.param(row, column, id=f"{row.name}-{column}")
        for row in rows
        for column in row.columns
    ]


@pytest.mark.filterwarnings("ignore")  # Of the trainings; those of a cell are compared.
@pytest.mark.parametrize(("row", "column"), cells(PLAIN))
def test_a_training_of_one_process(row: Row, column: str) -> None:
    assert wrong(row, column) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("row", "column"), cells(LIBRARIES))
def test_a_training_by_other_ways_or_with_other_libraries(row: Row, column: str) -> None:
    assert wrong(row, column) == []


@pytest.mark.slow
@pytest.mark.parametrize("num", [2, 4])
def test_trainings_on_ranks(num: int, tmp_path: Path) -> None:
    rows = {2: ON_TWO, 4: ON_FOUR}[num]
    run_file(tmp_path, Path(__file__).with_name("on_ranks.py"), num, [row.name for row in rows])
    for rank in range(num):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert len(found) == sum(len(row.columns) + 1 for row in rows)
        assert {cell: what for cell, what in found.items() if what} == {}, rank


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("row", "column"), cells(COMPILED))
def test_a_training_that_compiles(row: Row, column: str) -> None:
    assert wrong(row, column) == []


def test_the_page_on_real_trainings_has_the_table_of_the_matrix() -> None:
    found = PAGE.read_text().splitlines()
    start = found.index(table(EVERY_ROW)[0])
    assert found[start : start + len(table(EVERY_ROW))] == table(EVERY_ROW), "print it: page.py"


def test_every_row_stands_in_one_line_of_the_table() -> None:
    kinds = [kind for line in LINES for kind in line.kinds]
    assert len(kinds) == len(set(kinds))
    assert {row.kind for row in EVERY_ROW} == set(kinds)
    assert len({row.name for row in EVERY_ROW}) == len(EVERY_ROW)
