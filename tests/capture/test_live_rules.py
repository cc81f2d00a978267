"""Rules that look at a run while it is watched."""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from small_trainings import WHERE, blobs, classifier
from torch import nn

import torchtap as tt


def _train(model: nn.Module, w: tt.Watch, steps: int = 40) -> None:
    x, y = blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        w.log(loss=loss)
        w.step()


def _faulty() -> nn.Sequential:
    return classifier().append(nn.Softmax(1))


def test_an_alarm_is_warned_of_once_while_the_training_goes_on() -> None:
    model = _faulty()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with tt.watch(model, WHERE, to=tt.Stats(), rules=tt.rules.default) as w:
            _train(model, w, 9)
            told = len(caught)
            _train(model, w, 31)
    mine = [one for one in caught if issubclass(one.category, tt.TrainingWarning)]
    assert told == 1, "after 8 steps, and not at the end"
    assert "double_softmax at 3" in str(mine[0].message)
    assert mine[0].filename == __file__, "the line of the training that calls w.step()"
    assert linecache.getline(__file__, mine[0].lineno).strip() == "w.step()"
    assert sum("double_softmax" in str(one.message) for one in mine) == 1
    assert len(w.run.steps) == 40


def test_findings_are_kept_with_the_run(tmp_path: Path) -> None:
    model = _faulty()
    to: list[tt.Sink] = [tt.Disk(tmp_path / "run"), tt.Stats()]
    with (
        pytest.warns(tt.TrainingWarning),
        tt.watch(model, WHERE, to=to, rules=tt.rules.default) as w,
    ):
        _train(model, w, 12)
    for run in (w.run, tt.open(tmp_path / "run"), tt.open(w.run.save(tmp_path / "a.safetensors"))):
        assert run.meta.findings[0]["rule"] == "double_softmax"
        assert run.meta.findings[0]["path"] == "3"


def test_a_healthy_training_is_not_warned_of_and_not_changed() -> None:
    torch.manual_seed(0)
    plain, watched = classifier(), classifier()
    watched.load_state_dict(plain.state_dict())
    with tt.watch(plain, WHERE, to=tt.Stats()) as w:
        _train(plain, w)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tt.TrainingWarning)
        with tt.watch(watched, WHERE, rules=tt.rules.default) as w:
            _train(watched, w)
    assert all(map(torch.equal, plain.parameters(), watched.parameters()))
    assert w.run.meta.findings == ()


def test_a_stop_is_a_filter_of_warnings() -> None:
    model = _faulty()
    with warnings.catch_warnings():
        warnings.simplefilter("error", tt.TrainingWarning)
        w = tt.watch(model, WHERE, to=tt.Stats(), rules=tt.rules.default)
        with pytest.raises(tt.TrainingWarning, match="double_softmax"):
            _train(model, w)
    assert len(w.run.steps) == 8
    with pytest.raises(tt.TrainingWarning):  # As whatever a sink raised.
        w.close()


def test_checks_become_rarer_and_a_rule_that_raises_stops_nothing() -> None:
    calls: list[int] = []

    def count(view: tt.rules.View) -> Iterator[tt.Finding]:
        calls.append(len(view.steps))
        raise RuntimeError("of a user's rule")
        yield

    model = classifier()
    with tt.watch(model, WHERE, to=tt.Stats(), rules=[count]) as w:
        _train(model, w, 40)
    assert (calls[0], calls[-1]) == (8, 40), "the first, and the one at the end"
    assert len(calls) <= 8, "8, and a quarter more each time at least: 11, 14, 18, 23, 29, 37"
    assert all(later > 1.25 * sooner for sooner, later in pairwise(calls[:-1]))


def test_what_is_no_rule_is_refused_before_anything_is_watched() -> None:
    model = classifier()
    with pytest.raises(tt.InputError, match="functions of a view"):
        tt.watch(model, rules=["dead"])  # type: ignore[list-item]
    assert not model._forward_hooks
