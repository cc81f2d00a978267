"""Statistics in SQL and as tables: the same rows as ``run.stats`` gives one by one."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
from records import held_run, record
from torch import nn

import torchtap as tt
from torchtap.runs.export import export_run
from torchtap.runs.meta import Meta
from torchtap.stats.statistics import NUMBERS

NAMES = ["site", "step", "dtype", *NUMBERS]
COUNTS = {"numel", "num_finite", "zeros", "nan", "posinf", "neginf", "subnormal"}
TYPES = [
    "VARCHAR",
    "BIGINT",
    "VARCHAR",
    *("BIGINT" if name in COUNTS else "DOUBLE" for name in NUMBERS),
]


class Odd(nn.Module):
    """Values that are empty, not finite, whole numbers, and modules that some steps skip."""

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.some, self.none, self.whole = (nn.Identity() for _ in range(4))
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        if self.step % 2:
            self.some(x / 0)
        self.none(x[:0])
        self.whole(x.long())
        return self.relu(x.double() * self.step)


def watched(to: Any) -> tt.Run:
    model = Odd()
    with tt.watch(model, "*:output", to=to) as w:
        for _ in range(5):
            model(torch.tensor([[-2.0, 0.5], [0.0, float("nan")]]))
            w.step()
    return w.run


def in_memory(path: Path) -> tt.Run:
    return watched(tt.Memory())


def measured(path: Path) -> tt.Run:
    return watched(tt.Stats())


def in_a_file(path: Path) -> tt.Run:
    return tt.open(watched([tt.Memory(), tt.Stats()]).save(path / "run.safetensors"))


def in_a_folder(path: Path) -> tt.Run:
    watched([tt.Disk(path / "run", every=2), tt.Stats()])
    return tt.open(path / "run")


def partly_measured(path: Path) -> tt.Run:
    """Values of five steps and statistics of three, as after a crash."""
    watched(tt.Disk(path / "run"))
    model = Odd()
    disk = tt.Disk(path / "run", resume=True)
    with tt.watch(model, "*:output", to=[disk, tt.Stats()]) as w:
        w.step(3)
        for _ in range(3):
            model(torch.tensor([[1.0, 2.5]]))
            w.step()
    return tt.open(path / "run")


def merged(path: Path) -> tt.Run:
    runs = []
    for rank in range(2):
        stats = tt.Stats()
        for step in range(3):
            part = ("shard", "replica")[step % 2]
            label = f"shard {rank} of 2 (Shard(dim=0))" if part == "shard" else "replica"
            stats.take(record(part, torch.full((2, 3), 1.0 + rank), step=step, labels=(label,)))
            stats.close_step(step)
        meta = Meta(rank=rank, world_size=2)
        runs.append(held_run((), meta, series=stats.measured()))
    return tt.merge(runs)


def as_text(rows: list[Any]) -> list[list[str]]:
    """With NaN equal to NaN, and -0.0 other than 0.0."""
    return [[repr(one) for one in row] for row in rows]


KINDS = [in_memory, measured, in_a_file, in_a_folder, partly_measured, merged]


@pytest.mark.parametrize("made", KINDS)
def test_a_query_has_the_rows_that_run_stats_gives(
    made: Callable[[Path], tt.Run], tmp_path: Path
) -> None:
    run = made(tmp_path)
    expected = []
    for site in run.sites:
        for step in run.over_steps(site, "mean")[0]:
            stats = run.stats(site, step=step)
            expected.append([str(site), step, stats.dtype, *(getattr(stats, n) for n in NUMBERS)])
    asked = run.sql("select * from statistics")
    assert asked.columns == NAMES
    assert [str(kind) for kind in asked.types] == TYPES
    assert as_text(asked.fetchall()) == as_text(expected)
    (file,) = export_run(run, "parquet", tmp_path / "run.parquet")
    table = pyarrow.parquet.read_table(file)
    assert as_text([list(row.values()) for row in table.to_pylist()]) == as_text(expected)
    assert table.schema.field("site").type == pyarrow.string()
    (file,) = export_run(run, "csv", tmp_path / "run.csv")
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream))[1:]
    assert rows == [[str(one) for one in row] for row in expected]
    # Some columns of some rows: what duckdb asks of them is not what stands in the query.
    site, chosen = expected[-1][0], [row for row in expected if row[0] == expected[-1][0]]
    some = run.sql(f"select step, l2 from statistics where site = '{site}' and numel >= 0")
    at = NAMES.index("l2")
    assert as_text(some.fetchall()) == as_text([[row[1], row[at]] for row in chosen])
    count = run.sql("select count(*), count(mean), count(distinct dtype) from statistics")
    assert count.fetchall() == [(len(expected), len(expected), len({row[2] for row in expected}))]


def test_an_answer_keeps_what_it_was_asked_of() -> None:
    model = nn.Identity()
    with tt.watch(model, "*:output", to=tt.Stats()) as w:
        model(torch.ones(2))
        asked = w.run.sql("select step, l1 from statistics order by step")
        model(torch.ones(3))  # The same step goes on.
        assert w.run.sql("select step, l1 from statistics").fetchall() == [(0, 5.0)]
        assert asked.fetchall() == [(0, 2.0)]


def test_queries_do_not_meet_in_one_database() -> None:
    run = watched(tt.Stats())
    for number in range(2):
        asked = run.sql(f"create table mine as select {number} as one")
        assert asked is None or len(asked.fetchall()) == 1
    assert run.sql("show tables").fetchall() == [("statistics",)]
    other = tt.watch(relu := nn.ReLU(), to=tt.Stats())
    with other as w:
        relu(torch.ones(1))
    first, second = (one.sql("select count(*) from statistics") for one in (run, w.run))
    assert (first.fetchall(), second.fetchall()) == ([(23,)], [(1,)])


def test_a_site_with_a_lone_surrogate_has_a_row_of_its_own(tmp_path: Path) -> None:
    model = nn.Sequential()
    model._modules = {"\ud800": nn.ReLU(), "\\ud800": nn.ReLU()}
    with tt.watch(model, "*:output", to=[tt.Memory(), tt.Stats()]) as w:
        model(torch.ones(2))
    asked = w.run.sql("select site, l1 from statistics order by site").fetchall()
    assert asked[1:] == [("\\ud800:output", 2.0), ("\\ud800:output.1", 2.0)]
    for kind in ("csv", "parquet", "safetensors", "npz"):
        (file,) = export_run(w.run, kind, tmp_path / f"run.{kind}")
        if kind == "safetensors":
            from safetensors.torch import load_file

            found = load_file(file)
            assert sorted(found)[1:] == ["\\ud800:output", "\\ud800:output.1"]
            assert all(math.isclose(float(one.sum()), 2.0) for one in found.values())


def test_a_query_reads_no_variable_of_python_and_says_what_there_is() -> None:
    with tt.watch(relu := nn.ReLU(), to=tt.Stats()) as w:
        relu(torch.ones(2))
    run = w.run
    for name in ("run", "query", "columns"):  # Variables of torchtap, or of the caller.
        with pytest.raises(Exception, match=rf"Table with name {name} does not exist"):
            run.sql(f"select * from {name}").fetchall()
    for nothing in (None, "", " ;\n"):
        with pytest.raises(tt.InputError, match=r"run\.sql got .*; expected a query, such as"):
            run.sql(nothing)  # type: ignore[arg-type]
