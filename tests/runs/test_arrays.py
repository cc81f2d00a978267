"""``run.array``: numbers of many steps at once are those that each step has alone."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import torchtap as tt
from torchtap.core.errors import InputError, SiteError
from torchtap.runs.run import Run
from torchtap.stats.row_columns import COLUMNS

BAD = (0.0, math.nan, math.inf, -math.inf, 1e-40, -3.0)


def trained(*sinks: object, steps: int = 7) -> Run:
    """A run with NaN and Inf, a module that is not called in each step, updates, eval forwards."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 3), nn.ReLU())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with tt.watch(net, "*:output,param,update", to=list(sinks)) as w:  # type: ignore[arg-type]
        for step in range(steps):
            x = torch.tensor([BAD]) if step == 2 else torch.randn(4, 6)
            hidden = net[0](x)
            optimizer.zero_grad()
            (hidden if step % 3 else net[1](hidden)).nan_to_num().sum().backward()
            if step != 2:
                optimizer.step()
            w.step()
    return w.run


def right(run: Run, site: str, name: str) -> list[float]:
    """Statistics step by step, by the formulas of ``Statistics``."""
    found = []
    for step in run.steps:
        try:
            found.append(float(getattr(run.stats(site, step=step), name)))
        except SiteError:
            found.append(math.nan)
    return found


@pytest.mark.parametrize("where", ["memory", "file", "folder"])
def test_each_number_is_that_of_the_step_alone(where: str, tmp_path: Path) -> None:
    run = trained(tt.Stats(), *([tt.Disk(tmp_path / "run")] if where == "folder" else []))
    if where != "memory":
        path = tmp_path / "run" if where == "folder" else run.save(tmp_path / "run.safetensors")
        run = tt.open(path)
    assert any(map(math.isnan, right(run, "1:output", "std")))  # Not in each step.
    assert any(not math.isnan(one) for one in right(run, "0:update[weight]", "update_ratio"))
    for site in run.sites:
        for name in sorted(COLUMNS):
            np.testing.assert_array_equal(
                run.array(site, name), right(run, str(site), name), err_msg=f"{site} {name}"
            )


def test_values_that_were_kept_are_measured() -> None:
    run = trained(tt.Memory(), steps=3)
    np.testing.assert_array_equal(run.array("0:output", "l2"), right(run, "0:output", "l2"))
    assert run.array("0:output", "nonfinite").tolist() == [0.0, 0.0, 3.0]


def test_what_is_kept_of_the_last_steps_only_is_nan_before() -> None:
    run = trained(tt.Stats(keep=2), steps=5)
    medians = run.array("0:output", "median")
    assert np.isnan(medians[:3]).all()
    assert medians[4] == run.quantile("0:output", 0.5, step=4)


def test_evaluation_forwards_are_an_array_of_their_own() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    with tt.watch(net, "0", to=tt.Stats()) as w:
        for step in range(4):
            net.train()(torch.ones(1, 2)).sum().backward()
            if step % 2:
                with torch.no_grad():
                    net.eval()(torch.full((3, 2), 2.0))
            w.step()
    assert w.run.array("0:output", "numel").tolist() == [2.0] * 4
    evaluated = w.run.array("0:output", "numel", phase="eval")
    np.testing.assert_array_equal(evaluated, [math.nan, 6.0, math.nan, 6.0])


def test_a_name_or_a_site_that_is_not_there_is_named() -> None:
    run = trained(tt.Stats(statistics=[tt.stats.top_k(2)]), steps=2)
    with pytest.raises(SiteError, match="There is no statistic 'stdd'; did you mean 'std'"):
        run.array("0:output", "stdd")
    with pytest.raises(SiteError, match=r"9:output"):
        run.array("9:output", "std")
    with pytest.raises(InputError, match="is no number"):
        run.array("0:output", "top_k")
