"""Steps, sinks, copies: when records are made, where they go, and how they are kept."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from typing import Any

import pytest
import torch
from models import scales
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net


def two() -> nn.Sequential:
    return nn.Sequential(scales(2.0), scales(3.0))


def ones() -> Tensor:
    return torch.ones(2, requires_grad=True)


def train(model: nn.Module, w: tt.Watch, steps: int) -> None:
    for step in range(steps):
        model(ones() * step).sum().backward()
        w.step()


# --- steps ------------------------------------------------------------------------------------


def test_a_step_ends_where_the_user_says() -> None:
    model = two()
    with tt.watch(model, "0:*") as w:
        train(model, w, 3)
    assert w.run.steps == [0, 1, 2]
    assert [w.run.get("0:output", step=step)[0].item() for step in range(3)] == [0, 2, 4]


def test_without_steps_all_calls_are_of_step_0() -> None:
    model = two()
    with tt.watch(model, "0") as w:
        for _ in range(3):
            model(ones())
    assert [(record.step, record.call) for record in w.run.records()] == [(0, 0), (0, 1), (0, 2)]


def test_calls_and_backwards_start_again_with_each_step() -> None:
    model = two()
    with tt.watch(model, "0:output,grad_output") as w:
        train(model, w, 2)
    assert {record.call for record in w.run.records()} == {0}
    assert {record.backward for record in w.run.records("0:grad_output")} == {0}


def test_a_late_gradient_belongs_to_the_step_of_its_forward() -> None:
    model = two()
    with tt.watch(model, "0:grad_output") as w:
        loss = model(ones()).sum()
        w.step()
        loss.backward()
    assert [record.step for record in w.run.records()] == [0]


def test_current_step_is_the_running_one() -> None:
    with tt.watch(two()) as w:
        assert w.current_step == 0
        w.step()
        assert w.current_step == 1


def test_stepping_a_closed_watch_is_an_error() -> None:
    w = tt.watch(two())
    w.close()
    with pytest.raises(tt.CaptureError, match="closed"):
        w.step()


@pytest.mark.parametrize(
    ("every", "wanted"),
    [(1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (7, [0]), (lambda step: step in (1, 3), [1, 3])],
    ids=["1", "2", "7", "function"],
)
def test_every_chooses_the_steps(every: Any, wanted: list[int]) -> None:
    model = two()
    with tt.watch(model, ["0:*", "!0:buffer"], every=every) as w:
        train(model, w, 5)
    assert w.run.steps == wanted
    for record in w.run.records("0:output"):
        assert record.value.tolist() == [2.0 * record.step] * 2


def test_steps_that_are_left_out_hold_no_parameters_either() -> None:
    model = nn.Linear(2, 2)
    with tt.watch(model, ".:param,param_grad", every=2) as w:
        train(model, w, 4)
    assert w.run.steps == [0, 2]


def test_a_model_that_never_ran_is_said_absent() -> None:
    with tt.watch(two(), "0") as w:
        pass
    assert [str(entry.site) for entry in w.absent] == ["0:output"]
    assert "was not called" in w.absent[0].reason


def test_a_module_that_its_parent_skips_is_said_absent() -> None:
    model = Net(lambda m, x: m.used(x), used=scales(2.0), skipped=scales(3.0))
    with tt.watch(model) as w:
        model(ones())
    assert [str(entry.site) for entry in w.absent] == ["skipped:output"]
    assert "parent skipped it" in w.absent[0].reason


def test_a_module_that_ran_is_not_said_absent() -> None:
    model = two()
    with tt.watch(model) as w:
        model(ones())
    assert w.absent == []


def test_an_absent_site_says_why_when_it_is_asked_for() -> None:
    model = Net(lambda m, x: m.used(x), used=scales(2.0), skipped=scales(3.0))
    with tt.watch(model) as w:
        model(ones())
    with pytest.raises(tt.SiteError, match="parent skipped it"):
        w.run["skipped:output"]


# --- sinks ------------------------------------------------------------------------------------


def test_a_function_takes_every_record() -> None:
    taken: list[tt.Record] = []
    model = two()
    with tt.watch(model, "*:*", to=taken.append):
        model(ones()).sum().backward()
    assert len(taken) == 12
    assert {str(record.key.site) for record in taken} >= {"0:output", "1:grad_input"}


def test_several_sinks_take_the_same() -> None:
    taken: list[tt.Record] = []
    memory = tt.Memory()
    model = two()
    with tt.watch(model, "*:*", to=[memory, taken.append]) as w:
        model(ones()).sum().backward()
    rows = [[(row.key, row.phase, id(row.kept)) for row in rows] for rows in (memory.rows, taken)]
    assert rows[0] == rows[1]
    assert len(w.run) == 12


def test_a_watch_that_keeps_nothing_has_no_run() -> None:
    with tt.watch(two(), to=lambda record: None) as w, pytest.raises(tt.CaptureError, match="none"):
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
    tally, model = ModuleCounters(), two()
    with tt.watch(model, "0", to=tally) as w:
        model(ones())
        w.step()
        model(ones())
    assert tally.asked == ["take 0:output", "step 0", "take 0:output", "close"]


def test_a_failing_sink_does_not_stop_the_training() -> None:
    failing, other, model = ModuleCounters("take 0:output"), ModuleCounters(), two()
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
    model = two()
    w = tt.watch(model, "*:output", to=ModuleCounters("take 1:output"))
    model(ones())
    with pytest.raises(OverflowError, match="no more") as caught:
        w.close()
    (note,) = caught.value.__notes__
    assert "ModuleCounters" in note
    assert "at 1:output (step 0, call 0)" in note


def test_a_sink_that_fails_at_the_end_of_a_step_is_heard() -> None:
    w = tt.watch(two(), to=ModuleCounters("step 0"))
    with pytest.raises(OverflowError) as caught:
        w.step()
    assert "at the end of step 0" in caught.value.__notes__[0]


def test_a_sink_that_fails_on_closing_is_heard() -> None:
    w = tt.watch(two(), to=ModuleCounters("close"))
    with pytest.raises(OverflowError) as caught:
        w.close()
    assert "on closing" in caught.value.__notes__[0]


def test_a_sink_may_run_the_model_without_being_called_for_it() -> None:
    model, taken = two(), []

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


# --- copies -----------------------------------------------------------------------------------


def overwrites() -> Net:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.inner(x)
        y += 100
        return y

    return Net(forward, inner=scales(2.0))


@pytest.mark.parametrize("copy", ["auto", "always"])
def test_what_is_overwritten_is_kept_as_it_was(copy: Any) -> None:
    model = overwrites()
    with tt.watch(model, "inner", copy=copy) as w:
        for _ in range(3):
            model(torch.ones(2))
            w.step()
    assert [record.value.tolist() for record in w.run.records()] == [[2.0, 2.0]] * 3
    assert w.absent == []


def test_without_copies_an_overwritten_value_is_never_handed_out() -> None:
    model = overwrites()
    with tt.watch(model, "inner", copy="never") as w:
        model(torch.ones(2))
    (record,) = w.run.records()
    assert record.overwritten
    with pytest.raises(tt.OverwrittenError, match=r"inner:output \(step 0, call 0\).*copy='always"):
        w.run["inner:output"]


def test_without_copies_an_overwritten_value_is_said_absent() -> None:
    model = overwrites()
    with tt.watch(model, "inner", copy="never") as w:
        model(torch.ones(2))
    assert [str(entry.site) for entry in w.absent] == ["inner:output"]
    assert "overwritten" in w.absent[0].reason


def test_without_copies_an_untouched_value_is_right_and_shares_memory() -> None:
    model = two()
    with tt.watch(model, ".", copy="never") as w:
        out = model(torch.ones(2))
    assert w.run[".:output"].data_ptr() == out.data_ptr()
    assert w.absent == []


def test_always_copying_shares_no_memory() -> None:
    model = two()
    with tt.watch(model, ".", copy="always") as w:
        out = model(torch.ones(2))
    assert w.run[".:output"].data_ptr() != out.data_ptr()


def test_auto_copies_no_more_once_nobody_was_seen_to_write() -> None:
    model = two()
    with tt.watch(model, ".") as w:
        outputs = []
        for _ in range(2):
            outputs.append(model(torch.ones(2)))
            w.step()
    shares = [
        record.value.data_ptr() == out.data_ptr()
        for record, out in zip(w.run.records(), outputs, strict=True)
    ]
    assert shares == [False, True]


def test_a_writer_who_comes_late_is_noticed_and_copied_for_from_then_on() -> None:
    model = two()
    with tt.watch(model, ".") as w:
        for step in range(5):
            out = model(torch.ones(2))
            if step >= 2:
                out += 100
            w.step()
    assert [record.overwritten for record in w.run.records()] == [False, False, True, False, False]
    kept = [record.value.tolist() for record in w.run.records() if not record.overwritten]
    assert kept == [[6.0, 6.0]] * 4
    assert len(w.absent) == 1


# --- memory -----------------------------------------------------------------------------------


@pytest.fixture
def no_gc() -> Any:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Activation(nn.Module):
    """Remembers weakly what it returned."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[weakref.ref[Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        self.seen.append(weakref.ref(y))
        return y.view(-1).sin()  # The graph holds y.


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("where", ["*:output", "*:*", "*:grad_output", "*:param_grad"])
def test_a_watched_model_is_freed_without_the_garbage_collector(where: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), Activation())
    seen = model[1].seen
    gone = weakref.ref(model), weakref.ref(model[0].weight)
    w = tt.watch(model, where, to=lambda record: None)
    for _ in range(3):
        model(torch.ones(1, 2, requires_grad=True)).sum().backward()
        w.step()
    model.zero_grad()
    w.close()
    del w, model
    assert [reference() for reference in (*gone, *seen)] == [None] * 5  # type: ignore[misc]


@pytest.mark.usefixtures("no_gc")
def test_activations_are_freed_while_the_watch_is_open() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Activation())
    with tt.watch(model, "*:*", to=lambda record: None) as w:
        for _ in range(3):
            model(torch.ones(1, 2, requires_grad=True)).sum().backward()
            w.step()
        assert [reference() for reference in model[1].seen] == [None] * 3


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("is_held", [False, True])
def test_a_graph_lives_no_longer_than_its_output(is_held: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), Activation())
    with tt.watch(model, "*:*", to=lambda record: None):
        out = model(torch.ones(1, 2, requires_grad=True))
        held = out if is_held else None
        del out
        assert (model[1].seen[0]() is not None) == is_held
        del held


def grown(steps: int, model: nn.Module, where: Any, sink: Any) -> int:
    """Bytes that the Python heap grows by over the second half of the steps."""
    x = torch.ones(4, 8, requires_grad=True)
    with tt.watch(model, where, to=sink) as w:
        tracemalloc.start()
        try:
            for step in range(steps):
                if step == steps // 2:
                    gc.collect()
                    before = tracemalloc.get_traced_memory()[0]
                model(x).sum().backward()
                model.zero_grad()
                x.grad = None
                w.step()
            gc.collect()
            return tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()


def small_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Flatten(0), nn.Identity())


@pytest.mark.slow
@pytest.mark.parametrize("where", [["*:*", "*:param,param_grad,buffer"]])
def test_memory_is_flat_over_2000_steps(where: Any) -> None:
    assert grown(2000, small_net(), where, lambda record: None) < 20_000


def test_memory_is_flat_over_some_steps() -> None:
    assert grown(200, small_net(), ["*:*", "*:param_grad"], lambda record: None) < 20_000


def test_a_sink_that_keeps_everything_is_seen_to_grow() -> None:
    assert grown(200, small_net(), ["*:*", "*:param_grad"], [].append) > 100_000


def test_a_loop_without_steps_stays_flat() -> None:
    model, x = small_net(), torch.ones(4, 8, requires_grad=True)
    with tt.watch(model, "*:*", to=lambda record: None) as w:
        for _ in range(600):
            model(x).sum().backward()
        engine = w._engine
        assert len(engine.gradients.on_tensors.tables) < 3000
        assert len(engine.gradients._handles) < 3000
