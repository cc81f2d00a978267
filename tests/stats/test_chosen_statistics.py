"""Further statistics of ``tt.Stats`` at some sites only."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import torchtap as tt


def _watched(statistics: dict[str, list[tt.Statistic]]) -> tt.Run:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with tt.watch(model, "*:input,output", to=tt.Stats(statistics=statistics)) as w:
        for _ in range(2):
            model(torch.ones(4, 2))
            w.step()
    return w.run


@pytest.mark.parametrize("saved", [False, True])
def test_a_site_has_the_statistics_of_the_patterns_that_it_fits(
    tmp_path: Path, *, saved: bool
) -> None:
    units, rank = tt.stats.along(1), tt.stats.effective_rank()
    run = _watched({"*@ReLU": [units, rank], "2:input": [units]})
    if saved:
        run = tt.open(run.save(tmp_path / "run.safetensors"))
    assert len(run.stats("1:output").extra["along(1)"].zeros) == 3
    # Each row of the batch is the same: no direction varies, so there is no number, and no error.
    assert math.isnan(run.stats("1:output").extra["effective_rank"])
    assert len(run.stats("2:input").extra["along(1)"].zeros) == 3
    with pytest.raises(tt.RunError, match="not asked for at this site"):
        run.stats("2:input").extra["effective_rank"]
    with pytest.raises(tt.RunError, match="not asked for at this site"):
        run.stats("0:output").extra["along(1)"]
    assert run.stats("0:output").numel == 12


def test_all_other_numbers_are_those_without_further_statistics() -> None:
    torch.manual_seed(0)
    plain = _watched({})
    torch.manual_seed(0)
    chosen = _watched({"*@ReLU": [tt.stats.along(1)]})
    for site in plain.sites:
        assert plain.array(site, "l2").tolist() == chosen.array(site, "l2").tolist()


def test_evaluation_forwards_have_the_same_statistics() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with tt.watch(model, to=tt.Stats(statistics={"*@ReLU": [tt.stats.along(1)]})) as w:
        model(torch.ones(4, 2)).sum().backward()
        with torch.no_grad():
            model(torch.ones(5, 2))
    assert len(w.run.stats("1:output", phase="eval").extra["along(1)"].zeros) == 3


def test_two_statistics_of_one_name_and_patterns_that_take_away_are_refused() -> None:
    with pytest.raises(tt.InputError, match="Two statistics are named 'a'"):
        tt.Stats(
            statistics={
                "*@Conv2d": [tt.stats.along(1, name="a")],
                "*@Linear": [tt.stats.along(-1, name="a")],
            }
        )
    with pytest.raises(tt.InputError, match="takes away"):
        tt.Stats(statistics={"!*@ReLU": [tt.stats.along(1)]})
