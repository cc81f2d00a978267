"""Keeping records in memory, all of them or within a budget."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchtap as tt
from torchtap.testing import Net

BYTES = 4 * 10  # One value: ten float32.


def model() -> nn.Sequential:
    return nn.Sequential(Net(lambda m, x: x * 2), Net(lambda m, x: x * 3))


def watch(memory: tt.Memory, steps: int) -> tt.Watch:
    net = model()
    with tt.watch(net, ["0", "1"], to=memory) as w:
        for step in range(steps):
            net(torch.full((10,), float(step)))
            w.step()
    return w


def test_without_a_budget_everything_is_kept() -> None:
    memory = tt.Memory()
    w = watch(memory, 20)
    assert len(w.run) == len(memory.rows) == 40
    assert memory.num_bytes == w.run.nbytes == 40 * BYTES
    assert memory.forgotten_steps == []


def test_with_a_budget_the_oldest_steps_go_as_a_whole() -> None:
    memory = tt.Memory(max_bytes=5 * BYTES)
    w = watch(memory, 4)
    assert w.run.steps == [2, 3]
    assert memory.forgotten_steps == [0, 1]
    assert memory.num_bytes <= 5 * BYTES
    assert w.run.get("1:output", step=2).tolist() == [12.0] * 10


def test_a_forgotten_step_says_what_there_is() -> None:
    w = watch(tt.Memory(max_bytes=5 * BYTES), 4)
    with pytest.raises(
        tt.SiteError, match=r"no record in step 0\. There are: step 2 call 0, step 3"
    ):
        w.run.get("0:output", step=0)


def test_what_fits_exactly_is_kept() -> None:
    memory = tt.Memory(max_bytes=2 * BYTES)
    w = watch(memory, 3)
    assert w.run.steps == [2]
    assert w.absent == []


def test_what_does_not_fit_in_one_step_is_listed_as_absent() -> None:
    w = watch(tt.Memory(max_bytes=BYTES), 1)
    assert [str(site) for site in w.run.sites] == ["0:output"]
    (entry,) = w.absent
    assert str(entry.site) == "1:output"
    assert "max_bytes=40) was full in step 0" in entry.reason


def test_a_value_larger_than_the_budget_is_never_kept() -> None:
    w = watch(tt.Memory(max_bytes=1), 2)
    assert len(w.run) == 0
    assert {str(entry.site) for entry in w.absent} == {"0:output", "1:output"}


def test_a_run_follows_what_the_memory_forgets() -> None:
    memory, net = tt.Memory(max_bytes=2 * BYTES), model()
    with tt.watch(net, ["0", "1"], to=memory) as w:
        for step in range(3):
            net(torch.full((10,), float(step)))
            assert w.run["0:output"][0].item() == 2 * step
            assert w.run.steps == [step]
            w.step()


def test_clearing_forgets_everything_and_frees_the_budget() -> None:
    memory, net = tt.Memory(max_bytes=2 * BYTES), model()
    with tt.watch(net, ["0", "1"], to=memory) as w:
        net(torch.ones(10))
        memory.clear()
        assert (len(w.run), memory.num_bytes) == (0, 0)
        net(torch.ones(10))
        assert len(w.run) == 2


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_a_budget_of_nothing_is_an_error(max_bytes: int) -> None:
    with pytest.raises(tt.InputError, match="max_bytes above 0 or None"):
        tt.Memory(max_bytes=max_bytes)


def test_one_memory_may_serve_two_watches_in_turn() -> None:
    memory = tt.Memory()
    watch(memory, 1)
    w = watch(memory, 2)
    assert len(w.run) == 6


def test_the_last_steps_alone_are_kept() -> None:
    net, memory = model(), tt.Memory(max_steps=2)
    with tt.watch(net, ["0", "1"], to=memory) as w:
        for step in range(5):
            net(torch.full((10,), float(step)))
            assert w.run.steps == list(range(max(step - 2, 0), step + 1))
            w.step()
    assert w.run.steps == [3, 4]
    assert w.run.get("1:output", step=3).tolist() == [18.0] * 10
    assert w.run.get("0:output", step=4).tolist() == [8.0] * 10
    with pytest.raises(tt.InputError, match="max_steps"):
        tt.Memory(max_steps=0)
