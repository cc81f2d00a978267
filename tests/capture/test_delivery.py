"""Records reach every sink, and a sink that fails does not stop the training."""

from __future__ import annotations

import pytest
import torch
from models import ones, two_scales
from torch import nn

import torchtap as tt


def test_a_function_takes_every_record() -> None:
    taken: list[tt.Record] = []
    model = two_scales()
    with tt.watch(model, "*:*", to=taken.append):
        model(ones()).sum().backward()
    assert len(taken) == 12
    assert {str(record.key.site) for record in taken} >= {"0:output", "1:grad_input"}


def test_several_sinks_take_the_same() -> None:
    taken: list[tt.Record] = []
    memory = tt.Memory()
    model = two_scales()
    with tt.watch(model, "*:*", to=[memory, taken.append]) as w:
        model(ones()).sum().backward()
    rows = [[(row.key, row.phase, id(row.kept)) for row in rows] for rows in (memory.rows, taken)]
    assert rows[0] == rows[1]
    assert len(w.run) == 12


def test_a_watch_that_keeps_nothing_has_no_run() -> None:
    with (
        tt.watch(two_scales(), to=lambda record: None) as w,
        pytest.raises(tt.CaptureError, match="none"),
    ):
        w.run  # noqa: B018 - it is the property that raises


class ModuleCounters:
    """A sink that counts what is asked of it, and raises when it is told to."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.asked: list[str] = []

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if what == self.fails:
            raise OverflowError(f"no more: {what}")

    def take(self, record: tt.Record) -> None:
        self._ask(f"take {record.site}")

    def close_step(self, step: int) -> None:
        self._ask(f"step {step}")

    def close(self) -> None:
        self._ask("close")


def test_a_sink_is_told_of_steps_and_of_the_end() -> None:
    tally, model = ModuleCounters(), two_scales()
    with tt.watch(model, "0", to=tally) as w:
        model(ones())
        w.step()
        model(ones())
    assert tally.asked == ["take 0:output", "step 0", "take 0:output", "close"]


def test_a_failing_sink_does_not_stop_the_training() -> None:
    failing, other, model = ModuleCounters("take 0:output"), ModuleCounters(), two_scales()
    w = tt.watch(model, "*:output", to=[failing, other])
    x = ones()
    model(x).sum().backward()
    assert x.grad.tolist() == [6.0, 6.0]
    with pytest.raises(OverflowError):
        w.step()
    model(x)
    with pytest.raises(OverflowError):
        w.close()
    assert failing.asked == ["take 0:output"]
    assert other.asked.count("take .:output") == 2
    assert other.asked[-1] == "close"


def test_what_a_sink_raises_keeps_its_type_and_gets_a_note() -> None:
    model = two_scales()
    w = tt.watch(model, "*:output", to=ModuleCounters("take 1:output"))
    model(ones())
    with pytest.raises(OverflowError, match="no more") as caught:
        w.close()
    (note,) = caught.value.__notes__
    assert "ModuleCounters" in note
    assert "at 1:output (step 0, call 0)" in note


def test_a_sink_that_fails_at_the_end_of_a_step_is_reported() -> None:
    w = tt.watch(two_scales(), to=ModuleCounters("step 0"))
    with pytest.raises(OverflowError) as caught:
        w.step()
    assert "at the end of step 0" in caught.value.__notes__[0]


def test_a_sink_that_fails_on_closing_is_reported() -> None:
    w = tt.watch(two_scales(), to=ModuleCounters("close"))
    with pytest.raises(OverflowError) as caught:
        w.close()
    assert "on closing" in caught.value.__notes__[0]


def test_a_sink_may_run_the_model_without_being_called_for_it() -> None:
    model, taken = two_scales(), []

    def runs_it(record: tt.Record) -> None:
        taken.append(record)
        model(torch.ones(2))

    with tt.watch(model, "*:output", to=runs_it):
        model(ones())
    assert len(taken) == 3


def test_sinks_run_without_grad_and_without_autocast() -> None:
    modes = []

    def looks(record: tt.Record) -> None:
        modes.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))

    model = nn.Linear(2, 2)
    with tt.watch(model, "*:*", to=looks), torch.autocast("cpu", torch.bfloat16):
        model(ones().reshape(1, 2)).sum().backward()
    assert modes == [(False, False)] * 4


class Closings:
    """Notes the steps that it is told of."""

    def __init__(self, *, skips_steps: bool) -> None:
        self.skips_steps = skips_steps
        self.closed: list[int] = []

    def take(self, record: tt.Record) -> None:
        """It keeps none."""

    def close_step(self, step: int) -> None:
        self.closed.append(step)

    def close(self) -> None:
        """It has no end."""


@pytest.mark.parametrize(("skips", "closed"), [(True, [0, 3, 4]), (False, [0, 1, 2, 3, 4])])
def test_a_sink_may_skip_steps_of_which_nothing_was_recorded(
    skips: bool, closed: list[int]
) -> None:
    """The last one of them is closed, so that the next begins behind it."""
    model, sink = nn.Linear(2, 2), Closings(skips_steps=skips)
    with tt.watch(model, to=sink, every=4) as w:
        for _ in range(5):
            model(torch.ones(1, 2))
            w.step()
    assert sink.closed == closed


def test_all_steps_are_closed_while_a_function_waits_for_them() -> None:
    model, seen = nn.Linear(2, 2), list[int]()
    with tt.watch(model, to=tt.Stats(), every=4) as w:
        stop = w.after_step(seen.append)
        for step in range(8):
            if step == 6:
                stop()
            model(torch.ones(1, 2))
            w.step()
    assert seen == [0, 1, 2, 3, 4, 5]
    assert w.run.steps == [0, 4]
