"""Steps that were measured beside steps whose values were kept: every view counts all of them."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from records import held_run
from torch import Tensor, nn

import torchtap as tt
from torchtap.cli import app as cli
from torchtap.runs.export import export_run

STEPS = 6
SITE = "0:output"


def value(step: int) -> Tensor:
    return torch.linspace(-1.0, 2.0 + step, 12 * (step + 1)).reshape(-1, 4)


def mean(*steps: int) -> float:
    return float(torch.cat([value(step) for step in steps]).double().mean())


def near(number: float) -> Any:
    """Equal up to the rounding of sums in float64."""
    return pytest.approx(number)


def recorded(to: Sequence[tt.Sink], steps: Sequence[int] = range(STEPS)) -> tt.Run:
    with tt.watch(net := nn.Sequential(nn.Identity()), SITE, to=to) as w:
        for step in steps:
            w.step(step)
            net(value(step))
    return w.run


def views(folder: Path, every: int) -> dict[str, tt.Run]:
    """One run while it is watched, in its folder and in a file."""
    path = folder / "run"
    live = recorded([tt.Stats(), tt.Disk(path, every=every)])
    opened = tt.open(path)
    return {
        "live": live,
        "folder": opened,
        "file": tt.open(opened.save(folder / "run.safetensors")),
    }


def said_by_commands(path: Path, capsys: pytest.CaptureFixture[str]) -> list[tuple[float, int]]:
    found = []
    for words in (["show"], ["stats"], ["stats", "--step", "all"], ["stats", "--step", "1-3"]):
        assert cli.run([words[0], str(path), *words[1:], "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        found.append((row["mean"], row["steps"]))
    return found


def test_a_step_that_was_measured_counts_where_some_values_were_kept_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every, last = mean(*range(STEPS)), mean(STEPS - 1)
    for name, run in views(tmp_path, every=4).items():
        assert [one.step for one in run.records(SITE)] == [0, 4], name
        assert run.stats(SITE).mean == near(last)
        assert run.stats(SITE, step="all").mean == near(every)
        (row,) = run.table()
        assert (row.step, row.steps, row.stats.mean) == (5, STEPS, near(last))
        assert row.nbytes == sum(value(step).nbytes for step in range(STEPS))
        (row,) = run.table(steps="all")
        assert (row.steps, row.stats.mean) == (STEPS, near(every))
        table = run.table(steps=range(1, 4), together=True)
        assert (table.steps, table.notes) == ((1, 2, 3), ())
        assert table.rows[0].stats.mean == near(mean(1, 2, 3))
        (row,) = run.table(steps=[4, 5])
        assert row.step == 5
        told = [run.table().as_dicts()[0]["mean"], float(run.to_frame()["mean"][0])]
        assert told == [near(last)] * 2
        assert f"{last:.4g}" in run.table()._repr_html_()
        asked = run.sql("select step, mean from statistics order by step").fetchall()
        assert asked == [(step, near(mean(step))) for step in range(STEPS)]
        (written,) = export_run(run, "csv", tmp_path / f"{name}.csv")
        with written.open(newline="") as stream:
            rows = [(int(row["step"]), float(row["mean"])) for row in csv.DictReader(stream)]
        assert rows == asked
        over = run.over_steps(SITE, "mean")
        assert over == ([0, 1, 2, 3, 4, 5], [one for _, one in asked])
        whole = torch.cat([value(step) for step in range(STEPS)]).double().mean(0).norm()
        assert run.mean_norm() == {"0": near(float(whole))}
    expected = [(last, STEPS), (last, STEPS), (every, STEPS), (mean(1, 2, 3), 3)]
    for path in (tmp_path / "run", tmp_path / "run.safetensors"):
        found = said_by_commands(path, capsys)
        assert found == [(near(one), steps) for one, steps in expected]


def mixed(measured: Sequence[int], kept: Sequence[int], **how: Any) -> tt.Run:
    """A run of steps that were measured and others whose values were kept, as after a crash."""
    one, two = recorded([tt.Stats(**how)], measured), recorded([tt.Memory()], kept)
    return held_run(two.records(), two.meta, series=one.series)


def test_values_that_were_kept_and_not_measured_count_too_and_are_named() -> None:
    run = mixed([0, 1, 2], [2, 3, 4])
    for step in range(5):
        assert run.stats(SITE, step=step).mean == near(mean(step))
    assert run.over_steps(SITE, "mean")[0] == run.over_steps(SITE, "p99")[0] == [0, 1, 2, 3, 4]
    for stats in (run.stats(SITE, step=4), run.stats(SITE), run.stats(SITE, step="all")):
        assert "not measured while it ran: computed from the values that were kept" in stats.notes
    assert run.stats(SITE, step=2).notes == ()
    assert run.stats(SITE, step="all").mean == near(mean(0, 1, 2, 3, 4))
    window = run.stats(SITE, step=range(2, 8))
    assert window.mean == near(mean(2, 3, 4))
    assert "3 of 6 steps" in window.notes
    (row,) = run.table()
    assert (row.step, row.steps, row.stats.mean) == (4, 5, near(mean(4)))
    assert row.nbytes == sum(value(step).nbytes for step in range(5))
    (row,) = run.table(steps="all")
    assert row.stats.mean == near(mean(0, 1, 2, 3, 4))
    assert len(run.sql("select step from statistics").fetchall()) == 5
    with pytest.raises(tt.SiteError, match="step 7"):
        run.stats(SITE, step=7)


def test_a_mean_that_lacks_steps_is_refused_and_not_given_of_some() -> None:
    with pytest.raises(tt.RunError, match=r"no mean over samples of all 5 steps: steps 3, 4 were"):
        mixed([0, 1, 2], [2, 3, 4]).mean_norm()
    with pytest.raises(tt.RunError, match=r"has no mean over samples: it was not asked for"):
        mixed([0, 1, 2], [2], sample_mean=[]).mean_norm()
    whole = torch.cat([value(step) for step in (0, 1)]).double().mean(0).norm()
    assert mixed([0, 1], [0]).mean_norm() == {"0": near(float(whole))}


def test_further_statistics_over_steps_are_of_those_that_were_measured() -> None:
    run = mixed([0, 1], [1, 2], statistics=[tt.stats.top_k(1)])
    assert run.over_steps(SITE, "top_k")[0] == [0, 1]
    with pytest.raises(tt.RunError, match="computed from the values that were kept"):
        _ = run.stats(SITE, step=2).extra["top_k"]


def test_numbers_of_each_rank_are_of_steps_that_were_measured_or_kept() -> None:
    def rank(number: int) -> tt.Run:
        run = mixed([0, 1], [1, 2])
        meta = dataclasses.replace(run.meta, rank=number, world_size=2)
        return held_run(run.records(), meta, series=run.series)

    merged = tt.merge([rank(0), rank(1)])
    for step in range(3):
        assert merged.over_ranks(SITE, "mean", step=step) == (
            [0, 1],
            [near(mean(step))] * 2,
        )


def test_a_run_that_holds_anything_is_true() -> None:
    measured, kept = recorded([tt.Stats()]), recorded([tt.Memory()])
    assert (bool(measured), len(measured)) == (True, 0)
    assert (bool(kept), len(kept)) == (True, STEPS)
    with tt.watch(net := nn.Identity(), to=tt.Stats()) as w:
        assert not w.run
        w.log(loss=1.0)
        assert w.run
    evaluated = tt.Stats()
    with tt.watch(net, to=evaluated) as w, w.evaluating():
        net(torch.ones(1))
    assert (bool(w.run), len(w.run)) == (True, 0)
