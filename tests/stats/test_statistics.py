"""Statistics of tensors against float64 and exact fractions; merges; every kind of tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays
from random_numbers import normal
from torch import Tensor

import torchtap as tt
from torchtap.core.errors import InputError
from torchtap.stats.measure import measure_all
from torchtap.stats.statistics import NUMBERS, Statistics

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
]


def truth(tensor: Tensor) -> dict[Any, Any]:
    """Everything by numpy in float64, or in whole numbers."""
    wide = tensor.detach().flatten().to(torch.float64).numpy()
    good = wide[np.isfinite(wide)]
    tiny = torch.finfo(tensor.dtype).tiny if tensor.dtype.is_floating_point else 0
    some = len(good) > 0
    sums = math.fsum(good**2)
    return {
        "numel": len(wide),
        "num_finite": len(good),
        "mean": math.fsum(good) / len(good) if some else math.nan,
        "std": good.std() if some else math.nan,
        "rms": math.sqrt(sums / len(good)) if some else math.nan,
        "l1": math.fsum(np.abs(good)),
        "l2": math.sqrt(sums),
        "min": good.min() if some else math.nan,
        "max": good.max() if some else math.nan,
        "absmax": np.abs(good).max() if some else math.nan,
        "zeros": int((wide == 0).sum()),
        "nan": int(np.isnan(wide).sum()),
        "posinf": int((wide == math.inf).sum()),
        "neginf": int((wide == -math.inf).sum()),
        "subnormal": int(((np.abs(good) > 0) & (np.abs(good) < tiny)).sum()),
    }


def assert_statistics(
    found: Any, expected: Any, *, rtol: float = 1e-9, atol: float = 1e-12
) -> None:
    for name in NUMBERS:
        value = getattr(found, name)
        assert value == pytest.approx(expected[name], rel=rtol, abs=atol, nan_ok=True), name


def sample_of(dtype: torch.dtype, shape: tuple[int, ...] = (7, 33, 5), seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) * 20
    values[values.abs() < 5] = 0
    return values.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_statistic_of_every_dtype_is_that_of_float64(dtype: torch.dtype) -> None:
    assert_statistics(tt.measure(sample_of(dtype)), truth(sample_of(dtype)))


@settings(max_examples=60)
@given(arrays.arrays(np.float32, st.integers(0, 70), elements=st.floats(width=32)))
def test_whatever_float32_can_hold_is_measured_right(values: Any) -> None:
    tensor = torch.from_numpy(values)
    expected = truth(tensor)
    good = values[np.isfinite(values)].astype(np.float64)
    scale = float(np.abs(good).max(initial=0))
    assert_statistics(tt.measure(tensor), expected, rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 63, 64, 511, 512, 1023])
def test_what_is_not_finite_is_counted_wherever_it_stands(
    dtype: torch.dtype, bad: Any, place: int
) -> None:
    tensor = sample_of(dtype, (1024,))
    tensor[place] = bad
    assert_statistics(tt.measure(tensor), truth(tensor))


def test_threads_that_measure_at_once_do_not_see_each_other() -> None:
    tensors = [torch.full((1 + place,), float(place - 20)) for place in range(40)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(tt.measure, tensors * 50))
    for place, one in enumerate(found):
        size, value = 1 + place % 40, place % 40 - 20
        assert (one.numel, one.mean, one.zeros) == (size, value, size * (value == 0))
        assert one.histogram is not None and one.histogram.counts.tolist() == [size]
        assert one.histogram.middles[0] == pytest.approx(value, rel=1 / 33)


@pytest.mark.parametrize("numel", [1, 65_535, 65_536, 70_001])
def test_listed_and_whole_histograms_are_those_of_numpy(numel: int) -> None:
    values = normal(numel, seed=numel)
    bits = values.numpy().view(np.uint32) >> 19
    bins, counts = np.unique(bits, return_counts=True)
    by_value = np.argsort(np.where(bins >= 4096, 4095 - bins.astype(np.int64), bins))
    found = tt.measure(values).histogram
    assert found is not None and not found.is_sample
    assert found.bins.tolist() == bins[by_value].tolist()
    assert found.counts.tolist() == counts[by_value].tolist()


def test_memory_that_was_freed_is_refused_and_not_read() -> None:
    freed = torch.ones(100)
    freed.untyped_storage().resize_(0)
    with pytest.raises(InputError, match="memory cannot be read"):
        tt.measure(freed)


def test_a_large_mean_does_not_swallow_a_small_spread() -> None:
    generator = torch.Generator().manual_seed(0)
    tensor = (torch.randn(100_000, generator=generator).double() * 1e-2 + 1e4).float()
    found, expected = tt.measure(tensor), truth(tensor)
    assert found.mean == pytest.approx(expected["mean"], rel=1e-12)
    assert found.std**2 == pytest.approx(expected["std"] ** 2, rel=1e-9)


def test_an_outlier_in_front_does_not_either() -> None:
    generator = torch.Generator().manual_seed(0)
    tensor = torch.randn(100_000, generator=generator)
    rest = tt.measure(tensor[1:])
    tensor[0] = 1e8
    found = tt.measure(tensor)
    merged = tt.measure(tensor[:1]).merge(rest)
    assert found.std == pytest.approx(merged.std, rel=1e-9)
    assert rest.std == pytest.approx(truth(tensor[1:])["std"], rel=1e-9)


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e30, 3e38])
def test_squares_neither_overflow_nor_underflow(scale: float) -> None:
    tensor = torch.linspace(-1, 1, 1001).double().mul(scale).float()
    expected = truth(tensor)
    found = tt.measure(tensor)
    assert found.l2 == pytest.approx(expected["l2"], rel=1e-9)
    assert found.std == pytest.approx(expected["std"], rel=1e-9)


def test_half_precision_extremes_do_not_overflow() -> None:
    tensor = torch.full((100_000,), 6e4, dtype=torch.float16)
    assert tt.measure(tensor).l2 == pytest.approx(float(tensor[0]) * math.sqrt(100_000), rel=1e-12)
    tensor = torch.full((100_000,), 1e-5, dtype=torch.float16)
    assert tt.measure(tensor).l1 == pytest.approx(float(tensor[0]) * 100_000, rel=1e-9)


# ---------------------------------------------------------------------- merging

parts = st.lists(
    arrays.arrays(
        np.float64, st.integers(0, 30), elements=st.floats(-1e6, 1e6, allow_subnormal=False)
    ),
    min_size=1,
    max_size=5,
)


@given(parts, st.floats(-1e8, 1e8))
def test_merged_parts_are_the_whole_whatever_their_means(arrays_: Any, shift: Any) -> None:
    tensors = [torch.from_numpy(a + shift * place) for place, a in enumerate(arrays_)]
    merged, whole = measure_all(tensors), truth(torch.cat(tensors))
    scale = whole["absmax"] if whole["num_finite"] else 0
    assert_statistics(merged, whole, rtol=1e-9, atol=1e-7 * scale)


def test_merging_is_associative_and_commutative() -> None:
    parts = [tt.measure(sample_of(torch.float32, (n,), n) + 100 * n) for n in (1, 50, 3, 999)]
    a, b, c, d = parts
    for other in (a.merge(b.merge(c.merge(d))), d.merge(c).merge(b.merge(a))):
        first = a.merge(b).merge(c).merge(d)
        for name in NUMBERS:
            assert getattr(other, name) == pytest.approx(getattr(first, name), rel=1e-12), name
        assert np.array_equal(other.histogram.counts, first.histogram.counts)


def test_means_at_both_ends_of_float64_have_a_mean_between() -> None:
    ends = [torch.tensor([sign * 1e308], dtype=torch.float64) for sign in (1, -1)]
    assert measure_all(ends).mean == tt.measure(torch.cat(ends)).mean == 0


MANY = {
    "alike": [sample_of(torch.float32, (9, 5), seed) for seed in range(7)],
    "of several shapes and dtypes": [
        sample_of(dtype, (size,), size)
        for size, dtype in enumerate((torch.float16, torch.float64, torch.int32, torch.bool), 3)
    ],
    "plain ones and others": [
        sample_of(torch.float32, (4, 6)),
        sample_of(torch.float32, (6, 4)).T,
        torch.zeros(0),
        sample_of(torch.float32, (70_001,)),
        torch.randn(5, dtype=torch.complex64),
        torch.tensor([math.nan, math.inf, -0.0, 1e-42]),
    ],
}


@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("histogram", [True, False])
def test_many_in_one_call_are_each_of_them_merged(name: str, histogram: bool) -> None:
    tensors = MANY[name]
    together = tt.measure((one for one in tensors), histogram=histogram)
    merged = reduce(Statistics.merge, (tt.measure(one, histogram=histogram) for one in tensors))
    assert together.numbers() == pytest.approx(merged.numbers(), rel=1e-12, nan_ok=True)
    for fact in ("num_tensors", "dtype", "shape", "nbytes", "zeros", "subnormal"):
        assert getattr(together, fact) == getattr(merged, fact), fact
    assert set(together.notes) == set(merged.notes)
    if histogram:
        assert together.histogram.bins.tolist() == merged.histogram.bins.tolist()
        assert together.histogram.counts.tolist() == merged.histogram.counts.tolist()


def test_tensors_that_measuring_others_gives_are_measured_as_they_are() -> None:
    pairs = [[torch.full((3,), float(one)), torch.full((2,), -1.0)] for one in range(4)]
    sizes = tt.measure(torch.tensor([tt.measure(pair).l1]) for pair in pairs)
    assert sizes.l1 == sum(3 * one + 2 for one in range(4))


def test_an_empty_part_changes_nothing() -> None:
    empty, part = tt.measure(torch.zeros(0)), tt.measure(sample_of(torch.float32))
    for merged in (empty.merge(part), part.merge(empty), Statistics().merge(part)):
        assert merged.numbers() == part.numbers()


def test_nan_in_one_part_stays_a_count() -> None:
    merged = tt.measure(torch.tensor([math.nan])).merge(tt.measure(torch.tensor([1.0, 3.0])))
    assert (merged.nan, merged.mean, merged.std) == (1, 2.0, 1.0)


def test_a_thousand_million_elements_are_counted_right() -> None:
    part = tt.measure(torch.cat([torch.ones(500), torch.full((500,), 3.0)]))
    for _ in range(20):
        part = part.merge(part)
    assert part.numel == 1000 * 2**20
    assert part.mean == 2.0
    assert part.std == pytest.approx(1.0, rel=1e-12)
    assert part.histogram.num_counted == 1000 * 2**20


def test_variance_of_shifted_parts_is_exact() -> None:
    numbers = [Fraction(n, 7) + (10_000 if n % 2 else 0) for n in range(200)]
    mean = sum(numbers) / len(numbers)
    expected = float(sum((n - mean) ** 2 for n in numbers) / len(numbers))
    tensors = [torch.tensor([float(n) for n in numbers[i::5]]).double() for i in range(5)]
    assert measure_all(tensors).std ** 2 == pytest.approx(expected, rel=1e-9)


# ---------------------------------------------------------------------- every kind of tensor


@pytest.mark.parametrize(
    "lay_out",
    [
        lambda t: t.transpose(0, 2),
        lambda t: t[::2, :, 1:4],
        lambda t: t[:, :1, :].expand(-1, 33, -1),
        lambda t: t.flip(0),
        lambda t: t.as_strided((5, 5), (1, 1)),
        lambda t: t[..., None].contiguous(memory_format=torch.channels_last),
        lambda t: t[0, 0, 0],
        lambda t: t[:0],
    ],
    ids=[
        "transposed",
        "strided",
        "expanded",
        "flipped",
        "overlapping",
        "channels_last",
        "0-d",
        "0",
    ],
)
def test_any_layout_is_measured_element_by_element(lay_out: Callable[..., Any]) -> None:
    tensor = lay_out(sample_of(torch.float32))
    assert_statistics(tt.measure(tensor), truth(tensor.contiguous()))


def test_complex_numbers_are_measured_by_magnitude_with_a_note() -> None:
    tensor = torch.complex(torch.tensor([3.0, 0.0]), torch.tensor([4.0, -2.0]))
    found = tt.measure(tensor)
    assert (found.max, found.l2, found.notes) == (5.0, math.sqrt(29), ("by magnitude",))


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
def test_sparse_tensors_are_measured_by_their_values_with_a_note() -> None:
    for tensor in (torch.eye(4).to_sparse(), torch.eye(4).to_sparse_csr()):
        found = tt.measure(tensor)
        assert (found.numel, found.l1) == (4, 4.0)
        assert "sparse" in found.notes[0]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_quantised_tensors_are_measured_by_their_values_with_a_note() -> None:
    tensor = torch.quantize_per_tensor(torch.tensor([0.5, -1.0]), 0.5, 0, torch.qint8)
    assert (tt.measure(tensor).l1, tt.measure(tensor).notes) == (1.5, ("dequantized",))


def test_views_with_a_lazy_sign_are_measured_as_they_read() -> None:
    tensor = torch.imag(torch.conj(torch.tensor([1 + 2j, 3 - 4j])))
    assert tensor.is_neg()
    assert (tt.measure(tensor).min, tt.measure(tensor).max) == (-2.0, 4.0)


def test_small_floats_are_measured_as_their_values() -> None:
    tensor = torch.tensor([0.5, -448.0]).to(torch.float8_e4m3fn)
    assert (tt.measure(tensor).min, tt.measure(tensor).dtype) == (-448.0, "float8_e4m3fn")


@pytest.mark.parametrize(
    "dtype",
    [*(torch.float8_e4m3fn, torch.float8_e4m3fnuz), *(torch.float8_e5m2, torch.float8_e5m2fnuz)],
    ids=str,
)
def test_subnormals_of_small_floats_are_their_own(dtype: Any) -> None:
    every = torch.arange(256).to(torch.uint8).view(dtype)
    sizes = every.to(torch.float64).abs()
    expected = int(((sizes > 0) & (sizes < torch.finfo(dtype).tiny)).sum())
    assert tt.measure(every).subnormal == expected > 0
    model = torch.nn.Identity()
    with tt.watch(model, to=tt.Stats()) as w:
        model(every)
        model(every)
    assert w.run.stats(".:output").subnormal == 2 * expected


def test_a_meta_tensor_is_refused() -> None:
    with pytest.raises(tt.InputError, match="meta tensor, which has no values"):
        tt.measure(torch.zeros(3, device="meta"))


@pytest.mark.parametrize("odd", ["text", 3, None, [1.0], [torch.ones(2), None]], ids=str)
def test_what_is_no_tensor_is_refused(odd: Any) -> None:
    with pytest.raises(tt.InputError, match="Only tensors can be measured"):
        tt.measure(odd)


def test_an_empty_tensor_has_counts_of_zero_and_nan_for_the_rest() -> None:
    found = tt.measure(torch.zeros(0, 3))
    assert (found.numel, found.zeros, found.l2) == (0, 0, 0.0)
    assert math.isnan(found.mean)
    assert math.isnan(found.quantile(0.5))


def test_slices_along_a_dim_are_measured_apart() -> None:
    tensor = sample_of(torch.float32)
    for place, found in enumerate(tt.measure(tensor, dim=1)):
        assert_statistics(found, truth(tensor[:, place]))


def test_a_dim_that_is_not_there_is_refused() -> None:
    with pytest.raises(tt.InputError, match="no such dim"):
        tt.measure(torch.zeros(3), dim=1)


# ---------------------------------------------------------------------- quantiles, shown


def test_ends_are_exact_and_the_middle_leaves_out_the_tails() -> None:
    tensor = normal(10_001)
    found = tt.measure(tensor)
    assert (found.quantile(0), found.quantile(1)) == (float(tensor.min()), float(tensor.max()))
    low, high = found.middle(0.75)
    inside = float(((tensor >= low) & (tensor <= high)).double().mean())
    assert inside == pytest.approx(0.75, abs=0.02)


def test_a_sampled_histogram_is_close_and_says_that_it_is_one() -> None:
    tensor = normal(500_000)
    found = tt.measure(tensor, exact=False)
    assert found.histogram.is_sample
    for q in (0.1, 0.5, 0.9):
        below = float((tensor < found.quantile(q)).double().mean())
        assert abs(below - q) < 4 * found.histogram.standard_error(q) + 0.02
    assert not tt.measure(tensor).histogram.is_sample


@pytest.mark.parametrize("period", [2, 3, 16, 100, 128, 1000, 1024, 4096])
def test_the_sample_leans_towards_no_channel(period: int) -> None:
    tensor = (torch.arange(1 << 20) % period < max(1, period // 4)).float()
    found = tt.measure(tensor, exact=False)
    ones = found.histogram.counts[found.histogram.middles > 0.5].sum()
    share = ones / found.histogram.num_counted
    error = math.sqrt(found.mean * (1 - found.mean) / found.histogram.num_counted)
    assert abs(share - found.mean) < 5 * error


def test_one_line_says_what_it_is() -> None:
    line = repr(tt.measure(torch.tensor([1.0, -2.0, math.nan, math.inf])))
    for part in ("float32[4]", "16 B", "-2", "mean -0.5", "std 1.5", "1 NaN", "1 Inf"):
        assert part in line
    assert "\n" not in line
    assert len(line) <= 100


def test_without_a_histogram_quantiles_say_how_to_have_one() -> None:
    with pytest.raises(tt.InputError, match="histogram=True"):
        tt.measure(torch.ones(2), histogram=False).quantile(0.5)


def test_merging_says_what_it_cannot_merge() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sink = tt.Stats(statistics=[tt.stats.top_k(2)])
    with tt.watch(model, "*:param,update", to=sink) as w:
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            w.step()
    one, two = (w.run.stats(".:update[weight]", step=step) for step in range(2))
    merged = one.merge(two)
    assert merged.numel == 12 and math.isnan(merged.update_ratio)
    assert "same or parts of one" in merged.why_no_ratio
    with pytest.raises(tt.RunError, match="only states of further statistics can be merged"):
        merged.extra["top_k"]
    assert "only states of further statistics" in str(dict(merged.extra)), "said in a copy too"
    with pytest.raises(tt.RunError, match="only states"):
        merged.merge(two).extra["top_k"]
    alone = Statistics().merge(one)
    assert alone.extra["top_k"] == one.extra["top_k"] and alone.update_ratio == one.update_ratio
