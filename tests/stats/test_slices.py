"""``tt.stats.Slices``: statistics of the slices of a tensor."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from bits import value_bits

import torchtap as tt


@pytest.mark.usefixtures("kernel")
def test_slices_of_a_tensor_without_any_are_none() -> None:
    statistic = tt.stats.along(1)
    for _ in range(20):
        assert statistic.update(statistic.init(), torch.zeros(3, 0)).numel.tolist() == []


def test_slices_print_as_one_line() -> None:
    slices = tt.stats.along(1, bound=2.0)
    found = slices.update(slices.init(), torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, -3.0]]))
    assert repr(found) == "3 slices of 2 elements: absmax [0 .. 3], 1 dead, 1 saturated"


@pytest.mark.parametrize("dims", [(4, 5), (3, 5, 2, 2), (2, 1)])
def test_slices_merge_as_if_they_were_one_tensor(dims: tuple[int, ...]) -> None:
    """Also where one tensor has more slices, where nothing is finite, and over many merges."""
    statistic = tt.stats.along(1, bound=1.0)
    generator = torch.Generator().manual_seed(len(dims))
    parts = [torch.randn(dims, generator=generator) * 10.0**n + 100 * n for n in range(-2, 3)]
    parts[1][:, 0] = math.nan
    parts[2][0] = math.inf
    short = parts[3][:, :1]
    states = [statistic.update(statistic.init(), part) for part in [*parts, short]]
    merged = functools.reduce(statistic.merge, states, statistic.init())
    twice = functools.reduce(statistic.merge, [statistic.merge(*states[:2]), *states[2:]])
    in_one = functools.reduce(statistic.update, [*parts, short], statistic.init())
    for found in (merged, twice, in_one):
        for place in range(dims[1]):
            wide = torch.cat([part.double()[:, place].flatten() for part in parts])
            if place == 0:
                wide = torch.cat([wide, short.double().flatten()])
            finite = wide[wide.isfinite()]
            for name, truth in (
                ("numel", wide.numel()),
                ("mean", finite.mean()),
                ("std", finite.std(correction=0)),
                ("l1", finite.abs().sum()),
                ("l2", finite.norm()),
                ("min", finite.min()),
                ("max", finite.max()),
                ("saturated", (wide.abs() >= 1).double().mean()),
            ):
                number = float(getattr(found, name)[place])
                assert number == pytest.approx(float(truth), rel=1e-12), (name, place)


def test_merging_slices_changes_neither_part() -> None:
    statistic = tt.stats.along(0)
    one, two = (statistic.update(statistic.init(), torch.randn(3, 4)) for _ in range(2))
    before = value_bits(one), value_bits(two)
    for pair in ((one, two), (two, one), (one, statistic.init()), (statistic.init(), two)):
        statistic.update(statistic.merge(*pair), torch.randn(3, 4))
    assert (value_bits(one), value_bits(two)) == before
