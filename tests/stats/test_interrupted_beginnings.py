"""Ctrl-C while hooks begin to measure, or while they are taken off."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import torchtap as tt
from torchtap.core.record import FORWARD, Record
from torchtap.core.site import Site
from torchtap.stats.kernels import native
from torchtap.stats.sink import Stats

SITE = Site("part", "output", "")

ENGINES = ("0", "1") if native.takes_calls() else ("0",)
pytestmark = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(autouse=True)
def chosen(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each test run by both engines."""
    monkeypatch.setenv("TORCHTAP_NATIVE", engine)


def interrupted_at(line: int, names: tuple[str, ...], action: Callable[[], object]) -> bool:
    """Raise KeyboardInterrupt at one of the lines of functions; return whether there is one."""
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_name not in names:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    assert left > 0, "the interrupt is lost"
    return False


def test_an_interrupt_while_a_site_begins_is_raised_and_its_rows_stay_its_own() -> None:
    model, x = nn.Sequential(nn.ReLU(), nn.Tanh()), torch.tensor([[1.0, 2.0]])
    line, was_interrupted = 0, True
    while was_interrupted:
        line += 1
        spare: list[tt.Stats] = []  # No block of an earlier sink is left for this one.
        while native.takes_calls() and len(spare) < 3:
            spare.append(tt.Stats())
            with tt.watch(model, "0", to=spare[-1]):
                model(x)
        with tt.watch(model, ["0", "1"], to=tt.Stats()) as w:
            begins = ("_begin", "add_block", "_add_block_on_cpu", "_table_on")
            was_interrupted = interrupted_at(line, begins, lambda: model(x))
            w.step()
            model(x)
        assert w.run.stats("0", step=1).l1 == 3, line
        assert w.run.stats("1", step=1).l1 == pytest.approx(x.double().tanh().sum().item())
    assert line > 3


def test_an_interrupt_while_hooks_that_rest_are_taken_off_leaves_those_for_the_next_time() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.ReLU())
    line, was_interrupted = 0, True
    while was_interrupted:
        line += 1
        w = tt.watch(model, "*:*", every=2)
        model(torch.ones(2))
        w.step()  # They rest.
        hooks = w._engine.hooks
        was_interrupted = interrupted_at(line, ("forget", "remove"), hooks.release)
        hooks.release()
        w.close()
        for module in model.modules():
            tables = module._forward_hooks, module._forward_pre_hooks
            assert not any(tables), line
            assert not any(map(vars, tables)), line
    assert line > 3


def test_a_thread_that_waits_while_the_step_ends_measures_nothing_into_the_next_one() -> None:
    sink, x = Stats(), torch.ones(3)
    meter = sink.meter(SITE)
    if not meter(x, 0):
        sink.take(Record(SITE, 0, 0, FORWARD, -1, (), x, -1))
    answers: list[bool] = []
    with sink.series.lock:
        thread = threading.Thread(target=lambda: answers.append(meter(x, 0)))
        thread.start()
        time.sleep(0.05)  # It has looked at the step by now, and waits for the lock.
        sink.close_step(0)
    thread.join()
    assert answers == [False]
    assert meter(2 * x, 1) is native.available()
    if native.available():
        assert sink.measured().rows.at(1, 0)[0] == 3
