"""Steps: which records belong to which, and what a watch holds in memory over many."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from typing import Any

import pytest
import torch
from models import ones, two_scales
from torch import Tensor, nn

import torchtap as tt


def train(model: nn.Module, w: tt.Watch, steps: int) -> None:
    for step in range(steps):
        model(ones() * step).sum().backward()
        w.step()


# --- steps ------------------------------------------------------------------------------------


def test_a_step_ends_where_the_user_says() -> None:
    model = two_scales()
    with tt.watch(model, "0:*") as w:
        train(model, w, 3)
    assert w.run.steps == [0, 1, 2]
    assert [w.run.get("0:output", step=step)[0].item() for step in range(3)] == [0, 2, 4]


def test_without_steps_all_calls_are_of_step_0() -> None:
    model = two_scales()
    with tt.watch(model, "0") as w:
        for _ in range(3):
            model(ones())
    assert [(record.step, record.call) for record in w.run.records()] == [(0, 0), (0, 1), (0, 2)]


def test_calls_and_backwards_start_again_with_each_step() -> None:
    model = two_scales()
    with tt.watch(model, "0:output,grad_output") as w:
        train(model, w, 2)
    assert {record.call for record in w.run.records()} == {0}
    assert {record.backward for record in w.run.records("0:grad_output")} == {0}


def test_a_late_gradient_belongs_to_the_step_of_its_forward() -> None:
    model = two_scales()
    with tt.watch(model, "0:grad_output") as w:
        loss = model(ones()).sum()
        w.step()
        loss.backward()
    assert [record.step for record in w.run.records()] == [0]


def test_current_step_is_the_running_one() -> None:
    with tt.watch(two_scales()) as w:
        assert w.current_step == 0
        w.step()
        assert w.current_step == 1


def test_stepping_a_closed_watch_is_an_error() -> None:
    w = tt.watch(two_scales())
    w.close()
    with pytest.raises(tt.CaptureError, match="closed"):
        w.step()


@pytest.mark.parametrize(
    ("every", "wanted"),
    [(1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (7, [0]), (lambda step: step in (1, 3), [1, 3])],
    ids=["1", "2", "7", "function"],
)
def test_every_chooses_the_steps(every: Any, wanted: list[int]) -> None:
    model = two_scales()
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


@pytest.mark.slow
def test_a_sink_that_keeps_everything_is_seen_to_grow() -> None:
    assert grown(200, small_net(), ["*:*", "*:param_grad"], [].append) > 100_000


def test_a_loop_without_steps_stays_flat() -> None:
    model, x = small_net(), torch.ones(4, 8, requires_grad=True)
    with tt.watch(model, "*:*", to=lambda record: None) as w:
        for _ in range(600):
            model(x).sum().backward()
        engine = w._engine.calls
        assert len(engine.gradients.on_tensors.tables) < 3000
        assert len(engine.gradients._handles) < 3000


def test_a_watch_says_that_no_step_was_closed() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tt.watch(model, to=tt.Stats()) as w:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    said = " ".join(str(w).split())
    assert "w.step() was never called: 5 calls and 5 steps of optimizers are one step" in said
