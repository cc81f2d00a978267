"""A store of a user's own, written against the public protocol of ``tt.Sink`` alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt

LARGE = 8


class HalfStore:
    """Stores values in float16, and refuses large ones."""

    keeps = False

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.stored: list[tt.Record] = []
        self.absent: list[tt.Absence] = []

    def take(self, record: tt.Record) -> None:
        self.taken.append(record.value.data_ptr())
        if record.value.numel() > LARGE:
            self.absent.append(tt.Absence(record.site, "it is too large for this store"))
        else:
            self.stored.append(record.with_value(record.value.half()))

    def close_step(self, step: int) -> None:
        pass

    def close(self) -> None:
        pass

    def contents(self) -> Sequence[tt.Record]:
        return list(self.stored)  # Another list each time.


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 9))


def test_it_is_given_what_flows_itself() -> None:
    store, net = HalfStore(), model()
    flowed: list[Tensor] = []
    net[0].register_forward_hook(lambda module, args, output: flowed.append(output))
    with tt.watch(net, "0", to=store):
        net(torch.ones(1, 2))
    assert store.taken == [flowed[0].data_ptr()]


def test_the_first_store_that_can_be_read_is_the_run() -> None:
    store, memory, net = HalfStore(), tt.Memory(), model()
    with tt.watch(net, "0", to=[lambda record: None, store, memory]) as w:
        net(torch.ones(1, 2))
    assert w.run["0:output"].dtype is torch.float16
    assert [record.value.dtype for record in memory.rows] == [torch.float32]


def test_it_is_read_again_through_the_run() -> None:
    store, net = HalfStore(), model()
    with tt.watch(net, "0:output,grad_output", to=store) as w:
        for step in range(3):
            x = torch.full((1, 2), float(step))
            expected = net[0](x)
            net(x).sum().backward()
            w.step()
            assert torch.equal(w.run.get("0:output", step=step), expected.half())
    assert w.run.steps == [0, 1, 2]
    assert [str(site) for site in w.run.sites] == ["0:output", "0:grad_output"]
    assert len(w.run) == len(store.stored) == 9  # Two calls of module 0 in each step.
    assert {row.dtype for row in w.run.table()} == {"float16"}


def test_what_it_dropped_is_no_longer_in_the_run() -> None:
    store, net = HalfStore(), model()
    with tt.watch(net, "0", to=store) as w:
        for _ in range(2):
            net(torch.ones(1, 2))
            w.step()
        assert w.run.steps == [0, 1]
        del store.stored[0]
        assert w.run.steps == [1]


def test_what_it_could_not_store_is_absent() -> None:
    net = model()
    with tt.watch(net, "?", to=HalfStore()) as w:
        net(torch.ones(1, 2))
    assert [str(site) for site in w.run.sites] == ["0:output"]
    assert [tuple(entry) for entry in w.absent] == [
        (tt.Site("1", "output"), "it is too large for this store")
    ]
    with pytest.raises(tt.SiteError, match="absent because it is too large for this store"):
        w.run["1:output"]


class Maxima(HalfStore):
    """Measures in place of storing, with meters that may raise."""

    def __init__(self) -> None:
        super().__init__()
        self.maxima: dict[str, float] = {}

    def meter(self, site: tt.Site) -> Callable[[Tensor, int], bool]:
        def measure(tensor: Tensor, step: int) -> bool:
            if tensor.dim() != 2:
                raise ArithmeticError("only batches of rows")
            if not tensor.is_floating_point():
                return False
            self.maxima[str(site)] = tensor.max().item()
            return True

        return measure


def test_its_meters_take_values_in_place_of_records() -> None:
    store, net = Maxima(), model()
    with tt.watch(net, "0", to=store):
        out = net[0](torch.ones(1, 2))
    assert store.maxima == {"0:output": out.max().item()}
    assert not store.taken


def test_what_a_meter_declines_becomes_a_record() -> None:
    store, net = Maxima(), nn.Sequential(nn.Identity())
    with tt.watch(net, "0", to=store):
        net(torch.ones(1, 2, dtype=torch.int64))
    assert len(store.stored) == 1


def test_a_meter_that_raises_does_not_stop_the_training() -> None:
    store, net = Maxima(), nn.Sequential(nn.Linear(2, 2))
    w = tt.watch(net, "0", to=store)
    x = torch.ones(2, requires_grad=True)
    net(x).sum().backward()
    assert x.grad is not None
    with pytest.raises(ArithmeticError, match="only batches") as caught:
        w.close()
    assert "Maxima in the meter of 0:output (step 0)" in caught.value.__notes__[0]
