"""A run knows the pipeline that ran its model."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import torchtap as tt

pytestmark = pytest.mark.usefixtures("one_process")

WATCHED = [("*", None), ("*", tt.Stats()), ("0:output", tt.Stats()), ("1:grad_output", None)]


def pipelined(model: nn.Module, num_microbatches: int = 4) -> Any:
    stage = PipelineStage(model, 0, 1, torch.device("cpu"))
    loss = lambda out, target: (out - target).square().mean()  # noqa: E731
    return ScheduleGPipe(stage, num_microbatches, loss)


@pytest.mark.parametrize(("where", "to"), WATCHED)
def test_a_run_knows_its_stage_and_the_number_of_microbatches(where: str, to: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    schedule = pipelined(model)
    with tt.watch(model, where, to=to) as w:
        before = w.run.meta
        for _ in range(2):
            schedule.step(torch.ones(8, 2), target=torch.zeros(8, 2))
            w.step()
    assert (before.stages, before.num_stages, before.num_microbatches) == ((), 1, 1)
    tapped = [path for path in ("", "0", "1") if where[0] in ("*", path)]
    expected = dataclasses.replace(
        before, stages=(0,), num_stages=1, num_microbatches=4, order=tuple(tapped)
    )
    assert w.run.meta == expected
    [site] = [site for site in w.run.sites if site.path != ""][:1]
    assert w.run.stats(site, step=0).num_tensors == 4  # Learning shapes is of phase eval.


@pytest.mark.usefixtures("one_process")
def test_a_model_that_no_pipeline_runs_is_no_stage() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with tt.watch(model) as w:
        model(torch.ones(8, 2)).sum().backward()
    assert w.run.meta.stages == ()
