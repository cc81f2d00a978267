"""The index keeps once what repeats from step to step, and gives back every row as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from recordings import held, record_steps

import torchtap as tt
from torchtap.core.site import Site
from torchtap.runs.run import contents_of
from torchtap.runs.store import index_file
from torchtap.runs.store.blocks import GROWING, BlockColumn, blocks_of, growth_of, narrow
from torchtap.runs.store.index import DTYPES, Index, Tables, joined_indices
from torchtap.runs.store.index_file import read_index, write_index
from torchtap.runs.store.layout import lane_name

Columns = dict[str, NDArray[Any]]


def columns_of(steps: list[tuple[int, list[int]]]) -> Columns:
    """An index of steps, each with its number and the sites that it has."""
    rows = [(step, site) for step, sites in steps for site in sites]
    step, site = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    found = {name: np.zeros(len(rows), dtype=kind) for name, kind in DTYPES.items()}
    times: dict[int, int] = {}
    for place, (_, one) in enumerate(rows):
        times[one] = times.get(one, -1) + 1
        found["offset"][place] = 4096 + times[one] * 24 * (1 + one)
        found["row"][place] = times[one]
        found["nbytes"][place] = 24 * (1 + one)
    found["step"], found["crc32"] = step, np.arange(len(rows)).astype(np.uint32) * 77
    found["site"] = found["file"] = found["shape"] = site.astype(np.int32)
    return found


def tables() -> Tables:
    """An index of six sites, of which each has a lane and a shape."""
    sites = [Site(f"m{n}") for n in range(6)]
    files = [lane_name(n, str(site)) for n, site in enumerate(sites)]
    shapes: list[tuple[int, ...]] = [(1, 6 * (1 + n)) for n in range(6)]
    return Tables(site=sites, shape=shapes, file=files, dtype=["float32"])


def expanded(columns: Columns) -> tuple[int, Columns, dict[str, BlockColumn]]:
    """How many rows are kept, all rows computed from them, and what computes them."""
    blocks, kept = blocks_of(columns)
    found = {}
    for name in (one for one in DTYPES if one != "crc32"):
        growth = growth_of(blocks, kept, columns[name]) if name in GROWING else None
        found[name] = BlockColumn(blocks, columns[name][kept], growth, DTYPES[name])
    assert blocks.is_sound(len(kept))
    return len(kept), {name: np.asarray(one) for name, one in found.items()}, found


LISTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([[0, 1, 2], [0, 1, 2], [0, 2], [5], [3, 3, 4]])),
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(gaps=LISTS, seed=st.integers(0, 1000))
def test_every_row_comes_back(gaps: list[tuple[int, list[int]]], seed: int) -> None:
    steps, number = [], 0
    for gap, sites in gaps:
        number += 1 + (gap == 3) * 7
        steps.append((number, sites))
    columns = columns_of(steps)
    _, whole, found = expanded(columns)
    rng = np.random.default_rng(seed)
    for name, one in whole.items():
        assert one.dtype == DTYPES[name]
        assert np.array_equal(one, columns[name])
        if len(one):
            assert (found[name].min(), found[name].max()) == (one.min(), one.max())
            place = int(rng.integers(len(one)))
            assert found[name][place] == one[place]
            places = rng.integers(0, len(one), max(len(one) // 5, 1))
            assert np.array_equal(found[name][places], one[places])
            mask = rng.random(len(one)) < 0.5
            assert np.array_equal(found[name][mask], one[mask])
            assert np.array_equal(found[name][2:-1], one[2:-1])


def test_steps_that_are_alike_are_kept_once() -> None:
    num_kept, _, _ = expanded(columns_of([(step, [0, 1, 2]) for step in range(1000)]))
    assert num_kept == 3
    steps = [(step, [0, 1, 2, 5] if step % 100 == 99 else [0, 1, 2]) for step in range(1000)]
    num_kept, _, _ = expanded(columns_of(steps))
    assert num_kept <= 10 * (3 + 4) + 10 * 6  # The step after each odd one grows unlike the rest.


def test_steps_that_are_never_alike_are_one_block() -> None:
    steps = [(step, list(range(1 + step % 5))) for step in range(100)]
    blocks, kept = blocks_of(columns_of(steps))
    assert len(blocks.periods) == 1
    assert np.array_equal(kept, np.arange(len(blocks)))


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(LISTS, min_size=2, max_size=4), is_plain=st.lists(st.booleans(), min_size=4))
def test_several_indices_are_one(
    parts: list[list[tuple[int, list[int]]]], is_plain: list[bool]
) -> None:
    indices, expected = [], []
    for number, part in enumerate(parts):
        columns = columns_of([(n, sites) for n, (_, sites) in enumerate(part)])
        own = tables()
        if number % 2:  # Of an attempt that saw its sites in another order.
            own = replace(own, site=own.site[::-1])
        expected += [
            (own.site[code], step, row)
            for code, step, row in zip(
                columns["site"].tolist(),
                columns["step"].tolist(),
                columns["row"].tolist(),
                strict=True,
            )
        ]
        lazy = columns if is_plain[number] else {**expanded(columns)[2], "crc32": columns["crc32"]}
        indices.append(Index({name: lazy[name] for name in DTYPES}, own))
    whole = joined_indices(indices)
    sites, steps, rows = (np.asarray(whole.columns[name]) for name in ("site", "step", "row"))
    found = zip((whole.tables.site[one] for one in sites), steps, rows, strict=True)
    assert list(found) == expected
    assert {len(np.asarray(one)) for one in whole.columns.values()} == {len(expected)}


@settings(max_examples=80, deadline=None)
@given(gaps=LISTS, share=st.floats(0, 1))
def test_the_first_rows_are_those_of_all(gaps: list[tuple[int, list[int]]], share: float) -> None:
    columns = columns_of([(number, sites) for number, (_, sites) in enumerate(gaps)])
    lazy: Columns = {**expanded(columns)[2], "crc32": columns["crc32"]}  # type: ignore[dict-item]
    index = Index({name: lazy[name] for name in DTYPES}, tables())
    count = int(share * len(columns["step"]))
    found = index.head(count)
    right = Index(columns, tables()).only(np.arange(len(columns["step"])) < count)
    assert found.tables.site == right.tables.site
    for name in DTYPES:
        assert np.array_equal(np.asarray(found.columns[name]), right.columns[name])


def test_the_narrowest_numbers_are_taken() -> None:
    for numbers, kind in [([-128, 127], np.int8), ([128], np.int16), ([2**31], np.int64)]:
        found = narrow(np.array(numbers, dtype=np.int64))
        assert found.dtype == kind and found.tolist() == numbers


@pytest.mark.parametrize("is_lazy", [True, False], ids=["computed", "expanded"])
def test_an_index_is_read_as_it_was_written(
    is_lazy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_file, "MOST_EXPANDED", 0 if is_lazy else 1 << 18)
    columns = columns_of([(step, [0, 1] if step % 7 else [0, 1, 4]) for step in range(50)])
    facts = write_index(tmp_path / "index", Index(columns, tables()), [b"{}", b'{"a": 1}'])
    assert facts["nbytes"] == (tmp_path / "index").stat().st_size
    found = read_index(tmp_path / "index", facts)
    assert found is not None and found.lines == ["{}", '{"a": 1}']
    for name, column in columns.items():
        assert np.array_equal(np.asarray(found.entries.columns[name]), column)
        assert isinstance(found.entries.columns[name], BlockColumn) == (is_lazy and name != "crc32")
    assert list(found.entries.tables.items()) == list(tables().items())
    ends = {
        name: int((columns["offset"] + columns["nbytes"])[columns["file"] == n].max(initial=0))
        for n, name in enumerate(tables().file)
    }
    assert found.fits(ends)
    for name in tables().file[:2]:
        assert not found.fits({**ends, name: ends[name] - 1})
    assert read_index(tmp_path / "index", {**facts, "crc32": 1}) is None


def test_a_run_of_which_rows_are_computed_answers_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flowed = record_steps(tmp_path / "run", range(8), rows=3000)
    plain = tt.open(tmp_path / "run")
    monkeypatch.setattr(index_file, "MOST_EXPANDED", 0)
    run = tt.open(tmp_path / "run")
    assert isinstance(contents_of(run).recorded.values.entries.columns["step"], BlockColumn)
    assert held(run) == held(plain) == flowed
    assert str(run) == str(plain)
    assert (run.nbytes, run.steps, run.sites) == (plain.nbytes, plain.steps, plain.sites)
    wanted = [0, 23_999, 7000, 3000, 2999]
    assert run.rows("0", wanted).equal(plain.rows("0", wanted))
    assert run.cat("2", steps=[3, 5]).equal(plain.cat("2", steps=[3, 5]))
    assert run.stats("1", step="all").l2 == plain.stats("1", step="all").l2
    record_steps(tmp_path / "run", range(5, 10), resume=True)
    assert run.refresh()
    assert run.steps == list(range(10)) == tt.open(tmp_path / "run").steps
    assert tt.open(tmp_path / "run").absent[-1].reason.startswith("attempt 0 has steps 5 to 7 too")
