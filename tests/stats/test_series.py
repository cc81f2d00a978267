"""Statistics of several steps together, read from the series."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchtap as tt


@pytest.fixture
def run() -> tt.Run:
    model = nn.Sequential(nn.Identity())
    with tt.watch(model, "0:output", to=tt.Stats()) as w:
        for step in range(40):  # Beyond the steps that are read together.
            model(torch.full((1, 2), float(step)))
            w.step()
    return w.run


@pytest.mark.parametrize("steps", [[50], [50, 60]])
def test_steps_that_were_not_measured_are_named(run: tt.Run, steps: list[int]) -> None:
    with pytest.raises(tt.SiteError, match=r"not measured in step 50.*40 steps from 0 to 39"):
        run.stats("0:output", step=steps)


def test_a_window_has_the_values_of_its_steps(run: tt.Run) -> None:
    found = run.stats("0:output", step=[1, 20, 39])
    assert (found.mean, found.numel, found.max) == (20.0, 6, 39.0)


def test_each_step_is_there_while_the_watch_is_open() -> None:
    model = nn.Sequential(nn.Identity())
    with tt.watch(model, "0:output", to=tt.Stats()) as w:
        for step in range(40):
            model(torch.full((1, 2), float(step)))
            assert w.run.stats("0:output", step=step).mean == step
            w.step()
            assert w.run.stats("0:output", step="all").mean == step / 2
            assert w.run.steps == list(range(step + 1))
