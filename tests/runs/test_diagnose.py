"""``tt.diagnose`` on runs of all kinds: poor, torn, merged, of values only; and with own rules."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from small_trainings import WHERE, blobs, classifier, linear, train
from torch import nn

import torchtap as tt
from torchtap.runs.rules.finding import finding_of


def _empty() -> tt.Run:
    with tt.watch(classifier(), WHERE, to=tt.Stats()) as w:
        pass
    return w.run


def _one_step() -> tt.Run:
    return train(classifier(), steps=1)


def _inference() -> tt.Run:
    model = classifier().eval()
    with torch.no_grad(), tt.watch(model, "*:*", to=tt.Stats()) as w:
        for _ in range(3):
            model(torch.randn(4, 12))
            w.step()
    return w.run


def _full_of_nan() -> tt.Run:
    x, y = blobs()
    return train(classifier(), data=(x * torch.nan, y), steps=12)


def _outputs_only() -> tt.Run:
    model = classifier()
    with tt.watch(model, to=tt.Stats()) as w:
        for _ in range(20):
            model(torch.randn(4, 12))
            w.step()
    return w.run


def _scalars_only() -> tt.Run:
    with tt.watch(classifier(), to=tt.Stats()) as w:
        for step in range(30):
            w.log(loss=1.0 / (step + 1))
            w.step()
    return w.run


def _integers_and_complex() -> tt.Run:
    model = nn.Linear(2, 2, dtype=torch.complex64)
    with tt.watch(model, "*:*,param,param_grad,update", to=tt.Stats()) as w:
        for _ in range(3):
            model(torch.ones(3, 2, dtype=torch.complex64)).abs().sum().backward()
            w.step()
    return w.run


POOR: list[Callable[[], tt.Run]] = [
    _empty,
    _one_step,
    _inference,
    _full_of_nan,
    _outputs_only,
    _scalars_only,
    _integers_and_complex,
]


@pytest.mark.parametrize("make", POOR)
@pytest.mark.parametrize("saved", [False, True])
def test_no_rule_raises_on_a_poor_run(
    make: Callable[[], tt.Run], tmp_path: Path, *, saved: bool
) -> None:
    run = make()
    if saved and run:
        run = tt.open(run.save(tmp_path / "run.safetensors"))
    found = tt.diagnose(run)
    assert not found.failed
    assert str(found)
    rules = {one.rule for one in found.alarms}
    assert rules == ({"nonfinite"} if make is _full_of_nan else set())


def test_data_that_is_not_finite_is_named_at_the_model() -> None:
    (found, *_) = tt.diagnose(_full_of_nan()).alarms
    assert (found.path, found.steps[0]) == (".", 0)


def _softmaxed(to: tt.Sink | list[tt.Sink]) -> tt.Run:
    torch.manual_seed(0)
    return train(classifier().append(nn.Softmax(1)), to=to, steps=12)


def test_values_without_statistics_are_measured() -> None:
    found = tt.diagnose(_softmaxed(tt.Memory()))
    assert found.findings[0].rule == "double_softmax"


def test_a_folder_and_a_torn_one_say_the_same(tmp_path: Path) -> None:
    _softmaxed([tt.Disk(tmp_path / "run"), tt.Stats()])
    assert tt.diagnose(tt.open(tmp_path / "run")).findings[0].rule == "double_softmax"
    torn = train_without_closing(tmp_path / "torn")
    assert tt.diagnose(torn).findings[0].rule == "double_softmax"


def train_without_closing(folder: Path) -> tt.Run:
    """Read a folder of which the watch still stands open, as after a crash."""
    model = classifier().append(nn.Softmax(1))
    x, y = blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    w = tt.watch(model, WHERE, to=[tt.Disk(folder), tt.Stats()])
    for _ in range(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        w.step()
    w.sync()
    run = tt.open(folder)
    run.steps  # noqa: B018 - read before the watch is closed
    found = run
    w.close()
    return found


def test_merged_ranks_are_diagnosed() -> None:
    runs = []
    for rank in range(2):
        run = _softmaxed(tt.Stats())
        meta = replace(run.meta, rank=rank, world_size=2)
        runs.append(tt.Run([], meta, series=run.series))
    found = tt.diagnose(tt.merge(runs))
    assert not found.failed
    assert [one.rule for one in found.alarms][:1] == ["double_softmax"]


def test_a_rule_that_raises_is_named_and_the_others_go_on() -> None:
    def broken(view: tt.rules.View) -> Iterator[tt.Finding]:
        raise KeyError("no such thing")
        yield

    run = _softmaxed(tt.Stats())
    found = tt.diagnose(run, rules=[broken, *tt.rules.default])
    assert found.findings[0].rule == "double_softmax"
    assert found.failed == {"broken": "KeyError: 'no such thing'"}
    assert "broken" in str(found)


def test_a_rule_of_ones_own_and_a_tuned_one_are_plain_functions() -> None:
    def many_steps(view: tt.rules.View, *, limit: int = 10) -> Iterator[tt.Finding]:
        if len(view.steps) > limit:
            yield tt.Finding("many_steps", "note", ".", view.span, f"{len(view.steps)} steps")

    model = classifier(nn.Dropout(0.6))
    run = train(model, steps=12)
    assert not tt.diagnose(run).alarms
    tuned = partial(tt.rules.dropout_high, limit=0.5)
    found = tt.diagnose(run, rules=[tuned, many_steps])
    assert [one.rule for one in found.findings] == ["dropout_high", "many_steps"]
    assert not tt.diagnose(run, rules=[partial(many_steps, limit=20)]).findings


def test_the_first_finding_names_what_it_explains() -> None:
    torch.manual_seed(0)
    model = classifier()
    nn.init.constant_(linear(model, 0).bias, -50.0)
    found = tt.diagnose(train(model))
    assert found.findings[0].rule == "dead"
    assert all(one in found.findings[1:] for one in found.findings[0].follows)
    assert found.alarms + found.notes == found.findings


def test_a_finding_goes_through_json() -> None:
    found = tt.diagnose(_softmaxed(tt.Stats()))
    body = json.loads(json.dumps(found.as_dict()))
    again = finding_of(body["findings"][0])
    assert again.as_dict() == replace(found.findings[0], follows=()).as_dict()


def test_steps_before_a_number_are_left_out() -> None:
    x, y = blobs(num=32 * 40)
    x[32 * 20 : 32 * 21] *= 1e4
    run = train(classifier(), data=(x, y))
    assert [one.rule for one in tt.diagnose(run).alarms][:1] == ["bad_batch"]
    assert "bad_batch" not in [one.rule for one in tt.diagnose(run, since=21).alarms]


def test_what_was_not_watched_is_said() -> None:
    said = " ".join(tt.diagnose(_outputs_only()).silent)
    assert "no parameters were watched" in said
    assert "no loss was logged" in said


@pytest.mark.parametrize("run", ["run.safetensors", None])
def test_what_is_no_run_is_refused(run: object) -> None:
    with pytest.raises(tt.InputError, match="expected a run"):
        tt.diagnose(run)  # type: ignore[arg-type]
    with pytest.raises(tt.InputError, match="functions of a view"):
        tt.diagnose(_empty(), rules=["dead"])  # type: ignore[list-item]


def test_a_first_step_after_the_end_is_said() -> None:
    found = tt.diagnose(train(classifier(), steps=3), since=100)
    assert found.silent == ("no step is as late as 100: the run has steps 0 to 2",)


def test_a_printed_diagnosis_keeps_to_the_page() -> None:
    long = tt.Finding("dead", "alarm", "a.b", (0,), "word " * 60, {"share": 0.5}, "try " * 60)
    printed = str(tt.Diagnosis((long,), silent=("note " * 60,)))
    assert max(map(len, printed.splitlines())) <= 100
    assert printed.count("word") == printed.count("try") == printed.count("note") == 60
