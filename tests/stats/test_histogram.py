"""Histograms with fixed bins, against numpy and against torch's own conversions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays
from random_numbers import normal

from torchtap.core.errors import InputError
from torchtap.stats.histogram import NUM_BINS, SHIFT, Histogram

RELATIVE_ERROR = 1 / 33
"""Largest relative distance of a value from its bin's middle: half a bin over the lowest middle."""

finite = arrays.arrays(
    np.float32,
    st.integers(1, 200),
    elements=st.floats(allow_nan=False, allow_infinity=False, width=32, allow_subnormal=False),
)


def counted(values: Any, **how: Any) -> Any:
    values = np.where(values == 0, 0, values).astype(np.float32)  # -0 counts as 0.
    return Histogram.of(np.bincount(values.view(np.uint32) >> SHIFT, minlength=NUM_BINS), **how)


def near(found: Any, truth: Any) -> bool:
    return abs(found - truth) <= RELATIVE_ERROR * abs(truth) + 2.0**-120


@given(finite)
def test_every_value_lies_in_its_bin(values: Any) -> None:
    low, high = counted(values).edges
    for value in np.unique(values.astype(np.float64)):
        assert ((low <= value) & (value <= high)).any()


@given(finite, st.floats(0, 1))
def test_each_order_statistic_is_right_to_its_stated_error(values: Any, q: Any) -> None:
    ordered = np.sort(values.astype(np.float64))
    rank = q * (len(values) - 1)
    low, high = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    found = counted(values).quantile(q)
    slack = RELATIVE_ERROR * (abs(low) + abs(high)) + 2.0**-120
    share = rank - math.floor(rank)
    assert abs(found - (low + share * (high - low))) <= slack


def test_quantiles_are_those_of_torch_on_smooth_data() -> None:
    values = normal(50_000)
    found = counted(values.numpy())
    for q in (0.01, 0.25, 0.5, 0.9, 0.999):
        truth = float(torch.quantile(values, q))
        assert abs(found.quantile(q) - truth) <= RELATIVE_ERROR * abs(truth) + 1e-3


@given(finite, finite, finite)
def test_merging_is_counting_together_in_any_order(one: Any, two: Any, three: Any) -> None:
    a, b, c = counted(one), counted(two), counted(three)
    whole = counted(np.concatenate([one, two, three]))
    for merged in (a.merge(b).merge(c), a.merge(b.merge(c)), c.merge(a).merge(b)):
        assert np.array_equal(merged.bins, whole.bins)
        assert np.array_equal(merged.counts, whole.counts)


def test_nothing_counted_has_no_quantile_and_no_share() -> None:
    empty = counted(np.zeros(0, np.float32))
    assert math.isnan(empty.quantile(0.5))
    assert math.isnan(empty.underflow("float16"))
    assert empty.exponents == {}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float16", torch.float16),
        ("fp16", torch.float16),
        ("bf16", torch.bfloat16),
        ("e5m2", torch.float8_e5m2),
        ("float8_e4m3fn", torch.float8_e4m3fn),
    ],
)
@pytest.mark.parametrize("spread", [2.0, 12.0, 30.0])
def test_what_underflows_is_what_torch_turns_into_zero(
    name: str, dtype: torch.dtype, spread: float
) -> None:
    generator = torch.Generator().manual_seed(int(spread))
    values = torch.randn(20_000, generator=generator).mul(spread).exp()
    values *= torch.randn(20_000, generator=generator).sign()
    values = values[values.isfinite() & (values.abs() > 2.0**-125)]
    turned = values.to(dtype).float()
    truth = float(((turned == 0) & (values != 0)).double().mean())
    assert counted(values.numpy()).underflow(name) == pytest.approx(truth, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "limit"),
    [("float16", 65536.0), ("float8_e5m2", 61440.0), ("float8_e4m3fn", 464.0)],
)
def test_what_overflows_lies_beyond_the_limit(name: str, limit: float) -> None:
    values = normal(20_000, seed=1).mul(9).exp()
    truth = float((values >= limit).double().mean())
    assert 0 < truth < 1
    assert counted(values.numpy()).overflow(name) == pytest.approx(truth, abs=1e-12)


def test_overflow_of_half_precision_is_torchs_infinity() -> None:
    values = normal(20_000, seed=1).mul(9).exp()
    turned = values.to(torch.float16)
    truth = float(turned.isinf().double().mean())
    assert counted(values.numpy()).overflow("fp16") == pytest.approx(truth, abs=1e-4)


@given(finite)
def test_exponents_are_those_of_frexp(values: Any) -> None:
    normal = values[np.abs(values) >= 2.0**-126]
    _, exponents = np.frexp(normal)
    truth = dict(zip(*np.unique(exponents - 1, return_counts=True), strict=True))
    found = {e: n for e, n in counted(values).exponents.items() if e > -127}
    assert found == truth


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'float12' is none of.*float8_e5m2"):
        counted(np.ones(1, np.float32)).underflow("float12")


def test_a_quantile_outside_of_0_to_1_is_refused() -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        counted(np.ones(1, np.float32)).quantile(1.5)


def test_a_sample_states_its_standard_error() -> None:
    sampled = counted(np.ones(100, np.float32), is_sample=True)
    assert sampled.standard_error(0.5) == pytest.approx(0.05)
    assert counted(np.ones(100, np.float32)).standard_error(0.5) == 0
    assert near(sampled.quantile(0.3), 1.0)
