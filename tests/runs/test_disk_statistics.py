"""The run of ``tt.Disk`` holds what ``tt.Stats`` measures beside it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import torch
from bits import value_bits
from recordings import batch, small_net
from records import held_run

import torchtap as tt
from torchtap.runs.store.growing_rows import RowsReader
from torchtap.runs.store.layout import read_json, write_json
from torchtap.runs.store.mapped_rows import MappedRows
from torchtap.runs.store.statistics_files import Measured, StatisticsWriter
from torchtap.stats.statistics import NUMBERS


def measure(path: Path, steps: range, *, keep: int = 64, **how: Any) -> tt.Run:
    """Measure and write some steps; returns the run in memory."""
    net, stats = small_net(), tt.Stats(keep=keep, statistics=further())
    with tt.watch(net, "*:output,grad_output", to=[tt.Disk(path, **how), stats]) as w:
        for step in steps:
            w.step(step)
            net(batch(step)).square().sum().backward()
            w.step()
    return held_run([], w.run.meta, series=w.run.series)


def further() -> list[tt.stats.Statistic]:
    """Whose states are merged by largest elements, by sums, and in the order of the steps."""
    return [tt.stats.top_k(3), tt.stats.along(0), tt.stats.cosine()]


def numbers(found: tt.Statistics) -> list[str]:
    """All numbers as text, in which NaN equals NaN."""
    return [repr(getattr(found, name)) for name in (*NUMBERS, "shape", "dtype", "notes")]


def bins(found: tt.Statistics) -> Any:
    """The histogram as lists."""
    histogram = found.histogram
    return None if histogram is None else (histogram.bins.tolist(), histogram.counts.tolist())


def crash(path: Path, attempt: int | None = None) -> None:
    """Make of a closed run, or of one attempt in it, one that was never closed."""
    for home in path.glob("rank-*/attempt-*" if attempt is None else f"rank-*/*-{attempt:03d}"):
        facts = read_json(home / "attempt.json")
        facts.pop("series")
        write_json(home / "attempt.json", {**facts, "state": "open"})
        (home / "series.safetensors").unlink()
        (home / "statistics.parquet").unlink()


def test_statistics_on_disk_are_those_in_memory(tmp_path: Path) -> None:
    memory = measure(tmp_path / "run", range(120), values=None)
    run = tt.open(tmp_path / "run")
    assert len(run) == 0
    assert run.sites == memory.sites
    assert run.steps == memory.steps == list(range(120))
    assert str(run.table(steps="all")) == str(memory.table(steps="all"))
    for site in run.sites:
        for step in (0, 60, 119, "all"):
            assert numbers(run.stats(site, step=step)) == numbers(memory.stats(site, step=step))
            assert bins(run.stats(site, step=step)) == bins(memory.stats(site, step=step))
    assert run.mean_norm() == memory.mean_norm()


def test_statistics_stand_beside_the_values(tmp_path: Path) -> None:
    measure(tmp_path / "run", range(3))
    run = tt.open(tmp_path / "run")
    assert len(run) == 3 * 8  # Of the model and of its three modules, output and gradient.
    value = run.get("1", step=2).double()
    assert run.stats("1", step=2).mean == pytest.approx(float(value.mean()), rel=1e-12)


def test_numbers_survive_a_crash(tmp_path: Path) -> None:
    memory = measure(tmp_path / "run", range(120))
    crash(tmp_path / "run")
    run = tt.open(tmp_path / "run")
    many = len(run.series.steps)  # They are written every 50 steps, and every second.
    assert run.series.steps == list(range(many))
    assert many >= 120 - 50
    for name in ("mean", "std", "l2", "max", "zeros"):
        found, right = (one.over_steps("1", name)[1] for one in (run, memory))
        assert found[:many] == right[:many]
        assert found == pytest.approx(right)  # The last ones of the values, which were kept.
    assert run.stats("1", step=7).histogram is None
    with pytest.raises(tt.RunError, match="was not closed"):
        held_run([], run.meta, series=run.series).mean_norm("1")


def test_statistics_of_several_attempts_are_one_history(tmp_path: Path) -> None:
    first = measure(tmp_path / "run", range(6), values=None)
    second = measure(tmp_path / "run", range(4, 9), values=None, resume=True)
    run = tt.open(tmp_path / "run")
    assert run.series.steps == list(range(9))
    steps, found = run.over_steps("1", "l2")
    assert steps == list(range(9))
    assert found == first.over_steps("1", "l2")[1][:4] + second.over_steps("1", "l2")[1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (range(6), range(6, 9)),  # One after the other.
        (range(6), range(4, 9)),  # Steps 4 and 5 again.
        (range(12), range(4, 9)),  # Step 9 to 11 are of another history.
        (range(30), range(28, 31)),  # Of few steps more than single ones are kept of.
    ],
    ids=str,
)
@pytest.mark.parametrize("values", [None, "*:*"], ids=["measured", "recorded"])
def test_all_statistics_of_several_attempts_are_those_of_one_training(
    first: range, second: range, values: Any, tmp_path: Path
) -> None:
    """Against one run in memory that did the steps that count once."""
    run = _in_two_attempts(tmp_path / "run", first, second, values)
    steps = [*range(first.start, second.start), *second]
    expected = _in_memory(steps)
    assert run.series.steps == steps
    for site in run.sites:
        for step in (second[-1], "all"):
            found, right = run.stats(site, step=step), expected.stats(site, step=step)
            assert numbers(found) == numbers(right)
            assert bins(found) == bins(right)
        for step in run.series.steps:
            if run.series.is_kept(step):
                assert bins(run.stats(site, step=step)) == bins(expected.stats(site, step=step))
        for step in (second[-1], "all") if len(first) <= 12 else (second[-1],):
            extra, other = run.stats(site, step=step).extra, expected.stats(site, step=step).extra
            assert value_bits(extra["top_k"]) == value_bits(other["top_k"])
            assert extra["cosine"] == pytest.approx(other["cosine"], rel=1e-12, nan_ok=True)
            np.testing.assert_allclose(extra["along(0)"].rows, other["along(0)"].rows, rtol=1e-12)
    if max(first) < min(second):
        assert run.mean_norm() == pytest.approx(expected.mean_norm(), rel=1e-14)
    else:
        with pytest.raises(tt.RunError, match="a later attempt repeats"):
            held_run([], run.meta, series=run.series).mean_norm("1")


def _in_two_attempts(path: Path, first: range, second: range, values: Any) -> tt.Run:
    measure(path, first, keep=12, values=values)
    measure(path, second, keep=12, values=values, resume=True)
    return tt.open(path)


def _in_memory(steps: Sequence[int]) -> tt.Run:
    net = small_net()
    with tt.watch(net, "*:output,grad_output", to=tt.Stats(statistics=further())) as w:
        for step in steps:
            w.step(step)
            net(batch(step)).square().sum().backward()
            w.step()
    return w.run


def test_all_statistics_of_several_attempts_on_several_ranks_are_of_all_values(
    tmp_path: Path,
) -> None:
    """Each rank stopped and went on; rank 1 ended a step early."""
    for rank, last in ((0, 8), (1, 7)):
        for steps in (range(5), range(3, last)):
            disk = tt.Disk(tmp_path / str(rank), values=None, resume=steps.start > 0)
            net = small_net()
            with tt.watch(net, "*:output", to=[disk, tt.Stats(keep=12)]) as w:
                for step in steps:
                    w.step(step)
                    net(batch(10 * step + rank))
                    w.step()
        home = tmp_path / str(rank) / "rank-00000"
        for path in home.glob("*/attempt.json"):
            facts = read_json(path)
            write_json(path, {**facts, "meta": {**facts["meta"], "rank": rank, "world_size": 2}})
        home.rename((tmp_path / "0" / "rank-00000").with_name(f"rank-{rank:05d}"))
    run, net, every = tt.open(tmp_path / "0"), small_net(), list[torch.Tensor]()
    with tt.watch(net, "1:output", to=lambda record: every.append(record.value.clone())):
        for step in range(7):
            for rank in range(2):
                net(batch(10 * step + rank))
    right, found = tt.measure(torch.cat(every)), run.stats("1", step="all")
    assert run.steps == list(range(7))
    assert bins(found) == bins(right)
    assert (found.numel, found.zeros, found.max) == (right.numel, right.zeros, right.max)
    assert found.std == pytest.approx(right.std, rel=1e-12)
    assert bins(run.stats("1", step=3)) == bins(tt.measure(torch.cat(every[6:8])))


def test_what_several_attempts_lack_is_said(tmp_path: Path) -> None:
    """Statistics of superseded steps of which no histogram is kept; and of one never closed."""
    measure(tmp_path / "run", range(60), keep=2)
    measure(tmp_path / "run", range(55, 57), keep=2, resume=True)
    found = tt.open(tmp_path / "run").stats("1", step="all")
    assert found.numel == 57 * 4 * 16
    assert "no histogram over all steps" in found.notes[-1]
    with pytest.raises(tt.InputError, match="There is no histogram here"):
        found.quantile(0.5)
    with pytest.raises(tt.RunError, match="a later attempt repeats"):
        found.extra["top_k"]
    crash(tmp_path / "run", attempt=0)
    run = tt.open(tmp_path / "run")
    found = run.stats("1", step="all")
    assert any("an attempt was not closed" in note for note in found.notes)
    assert found.numel == 57 * 4 * 16  # Those after step 49 are computed from the values.
    assert run.stats("1", step=56).quantile(0.5) >= 0
    (lost,) = [one.reason for one in run.absent if "statistics" in one.reason]
    assert "attempt 0 was not closed: its statistics after step 49 are lost" in lost


def test_a_live_run_answers_from_the_file_what_it_answered_from_memory(tmp_path: Path) -> None:
    """Statistics of steps that were written, also where gradients of them arrive late."""
    runs = []
    sinks: Any
    for sinks in (tt.Stats(), [tt.Disk(tmp_path / "run", values=None), tt.Stats()]):
        net = small_net()
        with tt.watch(net, "*:output,grad_output", to=sinks) as w:
            late = net(batch(500)).square().sum()
            w.step()
            for step in range(130):
                net(batch(step)).square().sum().backward()
                w.step()
            late.backward()
            w.step()
            live = held_run([], w.run.meta, series=w.run.series)
            runs.append(
                {
                    str(site): (
                        [repr(live.over_steps(site, name)) for name in NUMBERS],
                        numbers(live.stats(site, step="all")),
                    )
                    for site in live.sites
                }
            )
    assert runs[0] == runs[1]
    assert tt.open(tmp_path / "run").stats("1:grad_output", step=0).numel == 4 * 16


@pytest.mark.parametrize("is_there", [True, False])
def test_mapped_rows_are_apart_and_in_memory_where_no_file_can_be(
    is_there: bool, tmp_path: Path
) -> None:
    rows = MappedRows(tmp_path if is_there else tmp_path / "missing")
    sizes = [(50, 7), (1, 1), (50, 900), (3, 20_000), (50, 7), (0, 5)]
    found = [rows.empty(*size) for size in sizes] + [rows.alone(40, 2000)]
    for number, one in enumerate(found):
        one[...] = number
    assert [one.shape for one in found] == [(*size, 16) for size in (*sizes, (40, 2000))]
    assert all((one == number).all() for number, one in enumerate(found))
    assert not list(tmp_path.iterdir())  # The file has no name.


_GROWS = """
import sys, torch, torchtap as tt

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(one.split()[1]) for one in lines if one.startswith("RssAnon")) << 10

net = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(100)])
x = torch.randn(4)
with tt.watch(net, "?*", to=[tt.Disk(sys.argv[1], values=None), tt.Stats(keep=2)]) as w:
    for step in range(2400):
        if step == 400:
            before = anonymous()
        net(x)
        w.step()
    print(anonymous() - before)
    print(w.run.stats("7", step=3).mean == float(x.double().mean()))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_rows_that_were_written_take_no_memory(tmp_path: Path) -> None:
    """2,000 steps of 100 sites have 26 MB of rows."""
    done = subprocess.run(
        [sys.executable, "-c", _GROWS, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=True,
    )
    grown, is_right = done.stdout.split()
    assert int(grown) < 6_000_000
    assert is_right == "True"


def test_a_growing_run_shows_the_statistics_that_were_flushed(tmp_path: Path) -> None:
    net, disk = small_net(), tt.Disk(tmp_path / "run")
    with tt.watch(net, "1", to=[disk, tt.Stats()]) as w:
        net(batch(0))
        w.step()
        net(batch(1))
        disk.flush()
        run = tt.open(tmp_path / "run")
        assert run.series.steps == [0]  # Step 1 goes on.
        net(batch(2))
        w.step()
        disk.flush()
        run.refresh()
        assert run.series.steps == [0, 1]
        assert numbers(run.stats("1", step=1)) == numbers(w.run.stats("1", step=1))


def test_statistics_are_there_a_second_after_their_step(tmp_path: Path) -> None:
    """Statistics of a training that makes no further step; a late gradient counts, too."""
    net = small_net()
    with tt.watch(net, "1:*", to=[tt.Disk(tmp_path / "run", values=None), tt.Stats()]) as w:
        loss = net(batch(0)).square().sum()
        w.step()
        _wait_for_steps(tmp_path / "run", 1)
        loss.backward()
        net(batch(1))
        w.step()
        run = _wait_for_steps(tmp_path / "run", 2)
        for step, site in ((0, "1:output"), (0, "1:grad_output"), (1, "1:output")):
            assert numbers(run.stats(site, step=step)) == numbers(w.run.stats(site, step=step))
        (attempt,) = (tmp_path / "run").glob("rank-*/attempt-*")
        assert len(list(attempt.iterdir())) == 5  # lanes, and four files


def _wait_for_steps(path: Path, many: int) -> tt.Run:
    end = time.monotonic() + 20
    run = tt.open(path)
    while len(run.series.steps) < many and time.monotonic() < end:
        time.sleep(0.05)
        run.refresh()
    return run


def test_rows_of_single_steps_take_no_more_room_than_those_of_many(tmp_path: Path) -> None:
    generator, sizes = np.random.default_rng(0), []
    rows = generator.standard_normal((100, 300, 16)) ** 2 + 1
    known: Any = {f"blocks.{n}.attn:output": ["float32", [8, 64], 4, []] for n in range(300)}
    for many in (1, 50):
        (home := tmp_path / str(many)).mkdir()
        writer = StatisticsWriter(home)
        for start in range(0, 100, many):
            steps = list(range(start, start + many))
            writer.append(Measured("forward", steps, rows[start : start + many], known))
        sizes.append(writer.stream.end)
        reader = RowsReader(home)
        assert reader.refresh()
        assert np.array_equal(reader.series.rows.as_array()[1], rows)
        assert {(one.dtype, one.shape) for one in reader.series.measured} == {("float32", (8, 64))}
    assert sizes[0] < 1.05 * sizes[1]


def test_evaluation_forwards_are_apart(tmp_path: Path) -> None:
    net = small_net()
    with tt.watch(net, "1", to=[tt.Disk(tmp_path / "run"), tt.Stats()]) as w:
        for step in range(2):
            net(batch(step)).sum().backward()
            with torch.no_grad():
                net(batch(100 + step))
            w.step()
    expected = net[:2](batch(101)).detach().double()
    for is_crashed in (False, True):
        if is_crashed:
            crash(tmp_path / "run")
        run = tt.open(tmp_path / "run")
        if run.series.sites:
            found = run.stats("1", step=1, phase="eval")
            assert found.mean == pytest.approx(float(expected.mean()), rel=1e-12)


def test_the_table_holds_what_numpy_computes(tmp_path: Path) -> None:
    measure(tmp_path / "run", range(3))
    table = next((tmp_path / "run").rglob("statistics.parquet"))
    rows = duckdb.sql(
        f"select step, numel, mean, std, rms, l1, l2, min, max, absmax, zeros from '{table}' "
        f"where site = '1:output' and phase = 'forward' order by step"
    ).fetchall()
    assert [row[0] for row in rows] == [0, 1, 2]
    for step, *found in rows:
        x = small_net()[:2](batch(step)).detach().double().numpy()
        numbers = [x.size, x.mean(), x.std(), np.sqrt((x**2).mean()), abs(x).sum()]
        numbers += [math.sqrt((x**2).sum()), x.min(), x.max(), abs(x).max(), (x == 0).sum()]
        assert found == pytest.approx(numbers, rel=1e-9)


def test_a_run_is_read_by_others_as_the_page_shows(tmp_path: Path) -> None:
    """The second program of docs/reference/format.md runs where torchtap cannot be imported."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "format.md").read_text()
    write, read, *_ = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    there: dict[str, Any] = {}
    exec(write, there)
    run = tt.open(there["path"])
    expected = {f"{one.site} {one.step}": one.value.numpy() for one in run.records()}
    with torch.no_grad():
        for step in range(3):
            hidden = there["model"][0](torch.full((100, 300), float(step)))
            assert np.array_equal(expected[f"0:output {step}"], hidden.numpy())
    ragged = tmp_path / "ragged"
    net = torch.nn.Identity()
    with tt.watch(net, to=tt.Disk(ragged)) as w:  # The second lane has elements and no rows.
        for shape in ((40, 900), (40, 500), (0, 900), (), (30, 1, 800)):
            net(torch.randn(shape))
            w.step()
    right = {f"{one.site} {one.step}": one.value.numpy() for one in tt.open(ragged).records()}
    np.savez(tmp_path / "ragged.npz", **right)  # type: ignore[arg-type]
    np.savez(tmp_path / "expected.npz", **expected)  # type: ignore[arg-type]
    compare = (
        f"there = [({str(tmp_path / 'expected.npz')!r}, path, 6)]\n"
        f"there += [({str(tmp_path / 'ragged.npz')!r}, {str(ragged)!r}, 5)]\n"
        "for name, folder, many in there:\n"
        "    attempt = pathlib.Path(folder, 'rank-00000', 'attempt-000')\n"
        "    expected, stream = np.load(name), pa.ipc.open_stream(attempt / 'journal.arrows')\n"
        "    entries = [entry for batch in stream for entry in batch.to_pylist()]\n"
        "    assert len(entries) == len(expected.files) == many\n"
        "    for entry in entries:\n"
        "        right = expected[f\"{entry['site']} {entry['step']}\"]\n"
        "        found = value_of(entry)\n"
        "        assert found.shape == right.shape and np.array_equal(found, right)\n"
        "assert 'torch' not in sys.modules"
    )
    blocked = f"import sys\nsys.modules['torchtap'] = None\npath = {there['path']!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{blocked}{read}\n{compare}"],
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr
    said = [line.removeprefix("# ") for line in read.splitlines() if line.startswith("# ")]
    assert done.stdout.splitlines() == said
