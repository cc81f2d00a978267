"""Tensors that lie in another order than that of their dims, as convolutions compute them."""

from __future__ import annotations

import pytest
import torch
from random_numbers import normal
from torch import Tensor

from torchtap.core.record import FORWARD, Record
from torchtap.core.site import Site
from torchtap.stats.kernels import native
from torchtap.stats.series import Series
from torchtap.stats.sink import Stats

SITE = Site("conv", "output", "")


def last(tensor: Tensor) -> Tensor:
    """The tensor, channels last."""
    return tensor.contiguous(memory_format=torch.channels_last)


def measured(*tensors: Tensor) -> Series:
    sink = Stats(exact=True)
    for tensor in tensors:
        if not sink.meter(SITE)(tensor, 0):
            sink.take(Record(SITE, 0, 0, FORWARD, -1, (), tensor, -1))
    return sink.measured()


def batch(seed: int, rows: int = 4) -> Tensor:
    return normal(rows, 3, 5, 2, seed=seed)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    "tensors",
    [
        pytest.param((last(batch(0)), last(batch(1)), last(batch(2, rows=7))), id="channels last"),
        pytest.param((batch(0), last(batch(1)), last(batch(2))), id="contiguous first"),
        pytest.param((last(batch(0)), batch(1), batch(2), last(batch(3))), id="in turns"),
        pytest.param((last(batch(0)), batch(1, rows=8)[::2], last(batch(2))), id="with gaps"),
        pytest.param((last(batch(0, rows=1)), last(batch(1))), id="one sample first"),
    ],
)
def test_statistics_do_not_depend_on_the_order_in_memory(tensors: tuple[Tensor, ...]) -> None:
    series = measured(*tensors)
    whole = torch.cat([tensor.double() for tensor in tensors])
    place = series.place_of(SITE)
    row = series.rows.at(0, place)
    assert row is not None
    assert row[0] == whole.numel()
    assert row[2] == pytest.approx(whole.mean().item(), rel=1e-12)
    assert row[5] == pytest.approx(whole.square().sum().item(), rel=1e-12)
    mean_sum = series.measured[place].mean_sum
    assert mean_sum is not None
    torch.testing.assert_close(torch.from_numpy(mean_sum), whole.sum(0))


def test_tensors_that_are_channels_last_are_measured_as_they_lie() -> None:
    sink = Stats()
    sink.take(Record(SITE, 0, 0, FORWARD, -1, (), last(batch(0)), -1))
    meter = sink.meter(SITE)
    assert meter(last(batch(1)), 0) is native.available()
    assert not meter(last(batch(1)).transpose(2, 3), 0)
    assert not meter(batch(1, rows=8)[::2], 0)


def counted(series: Series, place: int) -> tuple[list[int], list[int]] | None:
    found = series.histogram(1, place)
    return None if found is None else (found.bins.tolist(), found.counts.tolist())


SITES = [Site("part", "output", ""), Site("whole", "output", ""), Site("late", "output", "")]
