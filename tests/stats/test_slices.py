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


# ------------------------------------------------------------- measured by the kernel, in passing


def truth_of_slices(parts: list[torch.Tensor], dim: int) -> dict[str, torch.Tensor]:
    """By hand in float64: of the slices of several tensors along a dim."""
    wide = [part.detach().double().movedim(dim, 0).flatten(1) for part in parts]
    joined = torch.cat(wide, 1)
    return {
        "numel": torch.full((len(joined),), joined.shape[1], dtype=torch.float64),
        "mean": joined.mean(1),
        "std": joined.std(1, correction=0),
        "l1": joined.abs().sum(1),
        "min": joined.amin(1),
        "max": joined.amax(1),
        "zeros": (joined == 0).double().mean(1),
    }


def assert_slices(found: tt.stats.Slices, parts: list[torch.Tensor], dim: int) -> None:
    for name, truth in truth_of_slices(parts, dim).items():
        torch.testing.assert_close(getattr(found, name), truth, rtol=1e-9, atol=1e-12)


LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "gaps": lambda x: torch.stack([x, x], -1)[..., 0],
    "negative": lambda x: torch.complex(x, -x).conj().imag,
}


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -4])
def test_slices_of_any_layout_and_of_batches_that_differ(
    layout: str, dim: int, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHTAP_NATIVE", native)
    model = torch.nn.Identity()
    shapes = [(4, 6, 5, 3)] * 3 + ([] if dim in (0, -4) else [(2, 6, 5, 3), (4, 6, 5, 3)])
    values = [[LAYOUTS[layout](torch.randn(shape).relu()) for shape in shapes] for _ in range(3)]
    statistics = [tt.stats.along(dim), tt.stats.along(1, name="channel")]
    with tt.watch(model, ".:output", to=tt.Stats(statistics=statistics)) as w:
        for step in values:
            for value in step:
                model(value)
            extra = w.run.stats(".:output").extra  # Read while the step goes on.
            assert_slices(extra["channel"], step, 1)
            w.step()
    for number, parts in enumerate(values):
        extra = w.run.stats(".:output", step=number).extra
        assert_slices(extra[f"along({dim})"], parts, dim)
        assert_slices(extra["channel"], parts, 1)
    everything = [value for step in values for value in step]
    assert_slices(w.run.stats(".:output", step="all").extra["channel"], everything, 1)


@pytest.mark.parametrize("native", ["0", "1"])
def test_slices_of_accumulated_gradients_are_those_of_the_last_value(
    native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHTAP_NATIVE", native)
    model = torch.nn.Linear(4, 3)
    with tt.watch(model, "*:param_grad", to=tt.Stats(statistics=[tt.stats.along(1)])) as w:
        for step in range(3):
            model.zero_grad()
            for part in range(3):
                model(torch.randn(5, 4)).square().sum().backward()
                if part == 1:
                    w.run.stats(".:param_grad[weight]")  # Reading between two changes nothing.
            kept = model.weight.grad.clone()
            w.step()
            assert_slices(
                w.run.stats(".:param_grad[weight]", step=step).extra["along(1)"], [kept], 1
            )


def test_slices_where_the_number_of_channels_changes() -> None:
    model = torch.nn.Identity()
    narrow, wide = torch.randn(4, 3), torch.randn(4, 7)
    with tt.watch(model, ".:output", to=tt.Stats(statistics=[tt.stats.along(1)])) as w:
        for value in (narrow, narrow, wide, wide, narrow):
            model(value)
        w.step()
    found = w.run.stats(".:output").extra["along(1)"]
    assert found.numel.tolist() == [20] * 3 + [8] * 4
    everything = [narrow, narrow, wide[:, :3], wide[:, :3], narrow]
    for name, truth in truth_of_slices(everything, 1).items():
        torch.testing.assert_close(getattr(found, name)[:3], truth, rtol=1e-9, atol=1e-12)


def test_slices_at_some_sites_and_another_statistic_at_others() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU())
    slices = tt.stats.along(1)
    asked: dict[str, list[tt.stats.Statistic]] = {
        "0:output": [slices],
        "1:output": [slices, tt.stats.top_k(2)],
    }
    batch = torch.randn(6, 4)
    with tt.watch(model, "*:output", to=tt.Stats(statistics=asked)) as w:
        for _ in range(3):
            out = model(batch)
            w.step()
    assert_slices(w.run.stats("1:output").extra["along(1)"], [out], 1)
    assert_slices(w.run.stats("0:output").extra["along(1)"], [model[0](batch)], 1)
    assert w.run.stats("1:output").extra["top_k"]
    with pytest.raises(tt.RunError, match="it was not asked for at this site"):
        w.run.stats("0:output").extra["top_k"]
