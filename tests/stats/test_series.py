"""Statistics of several steps together, read from the series."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import torchtap as tt
from other_threads import other_threads


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


def test_reading_before_a_site_has_a_value_changes_no_later_number() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Softplus())
    with tt.watch(model, "*:output,grad_output", to=tt.Stats()) as w:
        loss = model(torch.ones(1, 2)).sum()
        assert w.run.stats("1:output").numel == 2  # While there is no gradient yet.
        loss.backward()
        w.step()
    for step in (0, "all"):
        found = w.run.stats("1:grad_output", step=step)
        assert (found.min, found.max) == (1.0, 1.0)


def test_a_late_backward_is_merged_into_its_step() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    with tt.watch(model, "*:grad_output", to=tt.Stats()) as w:
        late = -model["a"](torch.ones(1, 2)).sum()
        model["b"](torch.ones(1, 2)).sum().backward()
        w.step()
        late.backward()
        w.step()
    for step in (0, "all"):
        found = w.run.stats("a:grad_output", step=step)
        assert (found.min, found.max) == (-1.0, -1.0)


def test_a_run_is_saved_while_another_thread_trains(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    with tt.watch(model, "*:output,param", to=tt.Stats()) as w:

        def train() -> None:
            model(torch.ones(1, 3))
            w.step()

        train()
        with other_threads(train) as wait:
            for _ in range(30):
                saved = tt.open(w.run.save(tmp_path / "run.safetensors"))
                steps = saved.over_steps(".:output", "numel")[0]
                assert steps == list(range(len(steps)))
                wait()


def test_a_sink_may_make_a_step_of_an_optimizer_when_it_is_given_a_parameter() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(record: tt.Record) -> None:
        if record.site.port == "param":
            optimizer.step()

    with tt.watch(model, "*:param,update,output", to=step):
        model(torch.ones(1, 3)).sum().backward()


def test_a_late_backward_adds_to_further_statistics_of_all_steps_alone() -> None:
    """A late part of a step whose states are kept no longer is not the whole."""
    model = nn.ModuleDict({"a": nn.Linear(2, 2)})
    how = tt.Stats(statistics=[tt.stats.top_k(1)], keep=1)
    with tt.watch(model, "*:grad_output", to=how) as w:
        late = model["a"](torch.ones(1, 2)).sum()
        (5 * model["a"](torch.ones(1, 2)).sum()).backward()
        w.step()
        (2 * model["a"](torch.ones(1, 2)).sum()).backward()
        w.step()
        late.backward()
        w.step()
    with pytest.raises(tt.RunError, match=r"kept of the last 1 steps, from 1 on, and step 0"):
        w.run.stats("a:grad_output", step=0).extra["top_k"]
    assert w.run.stats("a:grad_output", step="all").extra["top_k"][0].value == 5.0


def test_histograms_that_were_read_take_late_gradients() -> None:
    """Sites of two blocks of 256, read before and after the gradients of a closed step came."""
    model = nn.Sequential(*(nn.Identity() for _ in range(299)), nn.Linear(3, 3))
    with tt.watch(model, ["*:output", "*:grad_output"], to=tt.Stats()) as w:
        loss = model(torch.ones(2, 3, requires_grad=True) * 2).square().sum()
        w.step()
        outputs = [w.run.stats(str(place), step=0).histogram for place in range(300)]
        loss.backward()
        for place in range(299):
            gradient = w.run.stats(f"{place}:grad_output", step=0).histogram
            assert gradient is not None and gradient.counts.sum() == 6
            output = w.run.stats(str(place), step=0).histogram
            assert output is not None and output.counts.tolist() == [6]
    assert all(one is not None and one.counts.sum() == 6 for one in outputs)
