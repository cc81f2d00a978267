"""The native kernel against float64: every dtype, every instruction set, every position."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings, strategies as st

import torchtap as tt
from torchtap.stats.kernels import native
from torchtap.stats.rows import NUM_TENSORS

if not native.available():
    pytest.skip("the native kernel was not built", allow_module_level=True)

from torchtap.stats.kernels import _kernel

NAMES = (
    *("numel", "num_finite", "mean", "m2", "l1", "sum_squares", "min", "max"),
    *("zeros", "nan", "posinf", "neginf", "subnormal", "num_tensors", "counted"),
)
COUNTS = ("numel", "num_finite", "min", "max", *NAMES[8:13])
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DTYPES = list(native.DTYPES)
NUM_BINS = 8192


def instruction_sets() -> list[str]:
    found = []
    before = _kernel.capabilities()
    for name in ("baseline", "avx2", "avx512"):
        try:
            _kernel.force(name)
        except ValueError:
            continue
        found.append(name)
    _kernel.force(before)
    return found


@pytest.fixture(params=instruction_sets(), autouse=True)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _kernel.force(request.param)
    yield request.param
    _kernel.force(before)


def merge(
    row: torch.Tensor,
    other: torch.Tensor,
    histogram: torch.Tensor | None = None,
    more: torch.Tensor | None = None,
) -> None:
    """Merge a row into another, and the histogram ``more`` into ``histogram``."""
    native.merge_rows(row[None].numpy(), other[None].numpy())
    if histogram is not None and more is not None:
        histogram += more


Test = Callable[..., None]


def given_often(
    *strategies: st.SearchStrategy[Any], max_examples: int = 60
) -> Callable[[Test], Test]:
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    options = settings(max_examples=max_examples, deadline=None, suppress_health_check=quiet)

    def decorated(test: Test) -> Test:
        return options(given(*strategies)(test))

    return decorated


# ------------------------------------------------------------------------------ what is expected


def empty_rows(*shape: int) -> torch.Tensor:
    rows = torch.zeros(*shape, 16, dtype=torch.float64)
    rows[..., 6], rows[..., 7] = math.inf, -math.inf
    return rows


def measured(
    *tensors: torch.Tensor, histogram: torch.Tensor | None = None, sample: int = 0
) -> dict[str, float]:
    row = empty_rows()
    for tensor in tensors:
        native.accumulate(tensor, row, histogram, sample)
    return as_dict(row)


def as_dict(row: torch.Tensor) -> dict[str, float]:
    return dict(zip(NAMES, row.tolist(), strict=False))


def expected(tensor: torch.Tensor) -> dict[str, float]:
    values = tensor.reshape(-1).to(torch.float64).numpy()
    finite = values[np.isfinite(values)]
    tiny = torch.finfo(tensor.dtype).tiny if tensor.dtype.is_floating_point else 0
    mean = math.fsum(finite / max(finite.size, 1))
    # The rounding of the mean is taken out of the sum of squares again.
    deviations = finite - mean
    rest = math.fsum(deviations)
    with np.errstate(over="ignore", under="ignore"):
        m2 = math.fsum(deviations**2) - (rest * rest / finite.size if finite.size else 0)
        squares = math.fsum(finite**2)
    return {
        "numel": values.size,
        "num_finite": finite.size,
        "mean": mean,
        "m2": m2,
        "l1": math.fsum(abs(finite)),
        "sum_squares": squares,
        "min": finite.min(initial=math.inf),
        "max": finite.max(initial=-math.inf),
        "zeros": int((values == 0).sum()),
        "nan": int(np.isnan(values).sum()),
        "posinf": int((values == math.inf).sum()),
        "neginf": int((values == -math.inf).sum()),
        "subnormal": int(((values != 0) & (abs(values) < tiny)).sum()),
    }


def assert_close(found: dict[str, float], wanted: dict[str, float], relative: float) -> None:
    for name in COUNTS:
        assert found[name] == wanted[name], name
    for name in ("l1", "sum_squares"):
        assert found[name] == pytest.approx(wanted[name], rel=relative, abs=1e-307), name
    size = wanted["l1"] / max(wanted["num_finite"], 1)
    near = relative * size + 1e-307
    assert found["mean"] == pytest.approx(wanted["mean"], rel=relative, abs=near)
    # m2 is no better determined than the elements' own rounding in float64.
    floor = max(1e-30 * wanted["sum_squares"], 1e-307)
    assert found["m2"] == pytest.approx(wanted["m2"], rel=1e-9, abs=floor)


def expected_bins(tensor: torch.Tensor) -> np.ndarray:
    values = tensor.reshape(-1).to(torch.float64).numpy()
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore", under="ignore"):
        narrow = values.astype(np.float32)
        bits = narrow.view(np.uint32) - (abs(narrow.astype(np.float64)) > abs(values))
    bits = np.where(values == 0, 0, bits)
    return np.bincount((bits >> 19).astype(np.int64), minlength=NUM_BINS)


def elements(dtype: torch.dtype) -> st.SearchStrategy[float]:
    if dtype is torch.bool:
        return st.booleans()
    if not dtype.is_floating_point:
        whole = torch.iinfo(dtype)
        ends = [0, 1, whole.min, whole.max]
        return st.integers(whole.min, whole.max) | st.sampled_from(ends)
    info = torch.finfo(dtype)
    subnormal = info.smallest_normal / 4
    odd = [0.0, -0.0, subnormal, -subnormal, info.tiny, info.max, info.min, math.nan]
    odd += [math.inf, -math.inf, 1.0, -1.0]
    # Squares of float64 beyond 1e150 are tested apart.
    large = min(info.max, 1e150)
    return st.floats(-large, large) | st.floats(-3, 3) | st.sampled_from(odd[:4] + odd[7:])


def random_tensor(dtype: torch.dtype, numel: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(numel, generator=generator, dtype=torch.float64) * 20
    if dtype is torch.bool:
        return values > 0
    return (values.abs() if dtype is torch.uint8 else values).to(dtype)


# ------------------------------------------------------------------------- statistics, histogram


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_everything_is_as_in_float64(dtype: torch.dtype) -> None:
    @given_often(st.lists(elements(dtype), max_size=80), st.integers(0, 3))
    def check(values: list[float], repeats: int) -> None:
        tensor = torch.tensor(values, dtype=torch.float64 if dtype.is_floating_point else dtype)
        tensor = tensor.to(dtype).repeat(1 + repeats * 7)
        histogram = torch.zeros(NUM_BINS, dtype=torch.int64)
        found = measured(tensor, histogram=histogram)
        wanted = expected(tensor)
        assert_close(found, wanted, 1e-12)
        assert np.array_equal(histogram.numpy(), expected_bins(tensor))
        assert found["counted"] == wanted["num_finite"]

    check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_length_up_to_1100_and_around_blocks(dtype: torch.dtype) -> None:
    lengths = [
        *range(0, 1101, 1 if dtype in FLOATS else 7),
        4095,
        4096,
        4097,
        8191,
        8193,
        16383,
        16385,
        20_000,
    ]
    source = random_tensor(dtype, 20_020)
    for length in lengths:
        tensor = source[length % 13 :][:length]
        histogram = torch.zeros(NUM_BINS, dtype=torch.int64)
        assert_close(measured(tensor, histogram=histogram), expected(tensor), 1e-12)
        assert int(histogram.sum()) == int(tensor.isfinite().sum())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, -0.0, 0.0, "subnormal"])
def test_odd_elements_are_seen_at_every_position(dtype: torch.dtype, odd: float | str) -> None:
    value = torch.finfo(dtype).smallest_normal / 8 if odd == "subnormal" else odd
    blocks = [4094, 4095, 4096, 4097, 8190, 8191, 8192, 8193, 12287, 16383, 16384, 16388]
    for length, places in ((67, range(67)), (1100, range(0, 1100, 3)), (16389, blocks)):
        plain = random_tensor(dtype, length).abs() + 1
        for place in places:
            tensor = plain.clone()
            tensor[place] = value  # type: ignore[assignment]
            histogram = torch.zeros(NUM_BINS, dtype=torch.int64)
            found = measured(tensor, histogram=histogram)
            assert_close(found, expected(tensor), 1e-12)
            assert int(histogram[NUM_BINS // 2 :].sum()) == 0
            assert int(histogram.sum()) == found["num_finite"] == found["counted"]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -0.0, -7.5, 7.5])
def test_tensors_of_one_value(dtype: torch.dtype, value: float) -> None:
    for length in (1, 2, 31, 4096, 9000):
        tensor = torch.full((length,), value, dtype=dtype)
        assert_close(measured(tensor), expected(tensor), 1e-12)


def test_every_float16_and_bfloat16() -> None:
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        tensor = bits.view(dtype)
        histogram = torch.zeros(NUM_BINS, dtype=torch.int64)
        assert_close(measured(tensor, histogram=histogram), expected(tensor), 1e-12)
        assert np.array_equal(histogram.numpy(), expected_bins(tensor))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_measured_alike_where_they_lie_and_converted(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tiny = torch.finfo(dtype).tiny
    for numel in (1, 15, 16, 17, 31, 33, 4095, 4096, 4097, 9000):
        normal = torch.randn(numel)
        odd = torch.where(torch.rand(numel) < 0.1, torch.tensor(math.nan), normal / 0)
        cases = [normal, -normal.abs(), normal.relu(), 500 + normal, tiny * normal, odd, 0 * normal]
        for tensor in (case.to(dtype) for case in cases):
            # A histogram is made of floats, so each element is converted first.
            converted = measured(tensor, histogram=torch.zeros(NUM_BINS, dtype=torch.int64))
            found = measured(tensor)
            assert [found[name] for name in COUNTS] == [converted[name] for name in COUNTS]
            for name in ("mean", "m2", "l1", "sum_squares"):
                scale = math.sqrt(converted["sum_squares"] / numel) if name == "mean" else 0
                assert math.isclose(
                    found[name], converted[name], rel_tol=1e-9, abs_tol=1e-12 * scale
                ), name


def test_every_bin_boundary_of_float32() -> None:
    edges = (torch.arange(1 << 13, dtype=torch.int64) << 19).to(torch.int32)
    tensor = torch.cat([edges, edges + 1, edges - 1]).view(torch.float32)
    for values in (tensor, tensor.double()):
        histogram = torch.zeros(NUM_BINS, dtype=torch.int64)
        native.accumulate(values, empty_rows(), histogram)
        assert np.array_equal(histogram.numpy(), expected_bins(values))


def test_float64_beyond_float32_goes_to_the_outermost_bins() -> None:
    largest = 3.4028234663852886e38
    values = [1e200, -1e200, largest * 1.00000001, largest, 1e-200, -1e-200, 0.0, -0.0]
    histogram = torch.zeros(NUM_BINS, dtype=torch.int64)
    native.accumulate(torch.tensor(values, dtype=torch.float64), empty_rows(), histogram)
    top = 0x7F7FFFFF >> 19
    assert histogram[[top, 4096 + top, 0, 4096]].tolist() == [3, 1, 3, 1]


def test_flushed_subnormals_are_counted_all_the_same() -> None:
    tensor = torch.tensor([1e-40, 0.0, -1e-41, 1.0] * 20)
    assert torch.set_flush_denormal(True)
    try:
        found = measured(tensor)
        assert float(tensor[0] * 1) == 0.0
    finally:
        torch.set_flush_denormal(False)
    assert (found["zeros"], found["subnormal"]) == (20, 40)
    assert found["min"] == float(torch.tensor(-1e-41).double())


# ---------------------------------------------------------------------------------------- accuracy


def test_mean_and_variance_of_a_large_mean_and_a_small_spread() -> None:
    for outlier in (None, 1e6, -1e6, 1e30):
        tensor = random_tensor(torch.float64, 100_000) / 20 * 1e-2 + 1e4
        for dtype in (torch.float32, torch.float64):
            values = tensor.to(dtype)
            if outlier is not None:
                values[0] = outlier
            assert_close(measured(values), expected(values), 1e-12)


def test_one_outlier_apart_the_rest_keeps_its_variance() -> None:
    tensor = random_tensor(torch.float32, 50_000) * 5e-4 + 1e4
    first, rest = torch.tensor([1e10]), tensor
    row = empty_rows()
    native.accumulate(first, row)
    native.accumulate(rest, row)
    assert_close(as_dict(row), expected(torch.cat([first, rest])), 1e-12)


@pytest.mark.parametrize("size", [1e30, 1e-30, 1e38, 1e-38])
def test_squares_beyond_float32(size: float) -> None:
    tensor = (random_tensor(torch.float64, 5000) / 200 * size).float()
    assert_close(measured(tensor), expected(tensor), 1e-12)


def test_large_float64() -> None:
    tensor = random_tensor(torch.float64, 5000) * 1e198
    found = measured(tensor)
    assert found["sum_squares"] == found["m2"] == math.inf
    assert found["l1"] == pytest.approx(math.fsum(abs(tensor.numpy())), rel=1e-12)
    assert found["mean"] == pytest.approx(float(tensor.mean()), rel=1e-9)

    near = torch.full((5000,), 1e160, dtype=torch.float64)
    near[::2] *= 1 + 1e-10
    assert measured(near)["m2"] == pytest.approx(5000 * 5e149**2, rel=1e-5)

    most = torch.full((10_000,), 1.7e308, dtype=torch.float64)
    assert measured(most)["mean"] == pytest.approx(1.7e308)
    assert measured(most[:5000], -most[:5000])["mean"] == pytest.approx(0, abs=1e300)


@pytest.mark.slow
def test_norms_of_1e8_elements() -> None:
    tensor = torch.rand(10_000_000) + 0.1
    row = empty_rows()
    for _ in range(10):
        native.accumulate(tensor, row)
    wide = tensor.double()
    assert as_dict(row)["l1"] == pytest.approx(10 * float(wide.sum()), rel=1e-12)
    assert as_dict(row)["sum_squares"] == pytest.approx(10 * float(wide @ wide), rel=1e-12)


# --------------------------------------------------------------------------------- merging, threads


def test_parts_merge_in_any_order() -> None:
    @given_often(
        st.lists(st.lists(elements(torch.float32), max_size=40), min_size=1, max_size=6),
        st.randoms(use_true_random=False),
    )
    @example([[], [1.0], []], None)
    def check(lists: list[list[float]], random: object) -> None:
        parts = [torch.tensor(values, dtype=torch.float32) for values in lists]
        offsets = [part + 1000.0 * place for place, part in enumerate(parts)]
        rows = []
        for part in offsets:
            row = empty_rows()
            native.accumulate(part, row)
            rows.append(row)
        if random is not None:
            random.shuffle(rows)  # type: ignore[attr-defined]
        while len(rows) > 1:
            place = 0 if random is None else random.randrange(len(rows) - 1)  # type: ignore[attr-defined]
            merge(rows[place], rows.pop(place + 1))
        assert_close(as_dict(rows[0]), expected(torch.cat(offsets)), 1e-12)
        assert as_dict(rows[0])["num_tensors"] == len(parts)

    check()


def test_histograms_merge_by_adding() -> None:
    tensors = random_tensor(torch.float32, 3000), random_tensor(torch.float32, 500, seed=1)
    rows, histograms = empty_rows(2), torch.zeros(2, NUM_BINS, dtype=torch.int64)
    for tensor, row, histogram in zip(tensors, rows, histograms, strict=True):
        native.accumulate(tensor, row, histogram)
    merge(rows[0], rows[1], histograms[0], histograms[1])
    assert np.array_equal(histograms[0].numpy(), expected_bins(torch.cat(tensors)))
    assert rows[0, 14] == 3500


@pytest.mark.parametrize("sample", [0, 4096])
def test_threads_agree_and_repeat_themselves(sample: int) -> None:
    tensor = random_tensor(torch.float32, 4_300_001)
    tensor[1_500_000], tensor[99] = math.nan, 0.0

    def run(threads: int) -> tuple[list[float], list[int]]:
        row, histogram = empty_rows(), torch.zeros(NUM_BINS, dtype=torch.int64)
        addresses = row.data_ptr(), histogram.data_ptr()
        _kernel.accumulate(tensor.data_ptr(), tensor.numel(), 0, *addresses, sample, threads)
        return row.tolist(), histogram.tolist()

    alone = run(1)
    for threads in (2, 3, 4, 1000):
        row, histogram = run(threads)
        assert (row, histogram) == run(threads)
        assert histogram == alone[1]
        assert row == pytest.approx(alone[0], rel=1e-12)


# ------------------------------------------------------------------------------------------ samples


def test_a_sample_is_of_about_the_wanted_size_and_without_what_is_not_finite() -> None:
    for numel in (16_390, 20_000, 65_536, 1_000_003):
        tensor = random_tensor(torch.float32, numel)
        found = measured(tensor, histogram=torch.zeros(NUM_BINS, dtype=torch.int64), sample=4096)
        assert found["counted"] == 4096
        tensor[::2] = math.nan
        tensor[1] = math.inf
        histogram = torch.zeros(NUM_BINS, dtype=torch.int64)
        found = measured(tensor, histogram=histogram, sample=4096)
        assert int(histogram.sum()) == found["counted"]
        assert abs(found["counted"] - 2048) < 4.5 * 32


def test_smaller_tensors_are_counted_completely() -> None:
    tensor = random_tensor(torch.float32, 8192)
    histogram = torch.zeros(NUM_BINS, dtype=torch.int64)
    assert measured(tensor, histogram=histogram, sample=4096)["counted"] == 8192
    assert np.array_equal(histogram.numpy(), expected_bins(tensor))


@pytest.mark.parametrize(("width", "threads"), [(3, 1), (100, 1), (1000, 1), (1000, 2), (1000, 3)])
def test_a_sample_takes_one_element_of_each_stratum(width: int, threads: int) -> None:
    strata = 3000
    bits = torch.arange(strata, dtype=torch.int32) << 19  # Each stratum has a bin of its own.
    tensor = bits.repeat_interleave(width).view(torch.float32)
    for values in (tensor, tensor.double()):
        histogram = torch.zeros(NUM_BINS, dtype=torch.int64)
        row, code = empty_rows(), native.DTYPES[values.dtype]
        addresses = row.data_ptr(), histogram.data_ptr()
        _kernel.accumulate(values.data_ptr(), values.numel(), code, *addresses, strata, threads)
        assert histogram[:strata].tolist() == [1] * strata
        assert int(histogram.sum()) == as_dict(row)["counted"] == strata


def test_a_sample_depends_on_no_tensor_before() -> None:
    sizes = [5000, 20_000, 50_000, 300_000, 5000, 81_921, 20_000, 7001, 50_000]
    tensors = {size: random_tensor(torch.float32, size) for size in sizes}

    def counts(size: int, found: dict[int, list[int]]) -> None:
        histogram = torch.zeros(NUM_BINS, dtype=torch.int64)
        measured(tensors[size], histogram=histogram, sample=2000)
        found[size] = histogram.tolist()

    alone: dict[int, list[int]] = {}
    for size in tensors:  # A thread of its own remembers nothing.
        thread = threading.Thread(target=counts, args=(size, alone))
        thread.start()
        thread.join()
    for size in sizes:
        again: dict[int, list[int]] = {}
        counts(size, again)
        assert again[size] == alone[size], size


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_minus_zeros_of_a_sample_count_as_zeros(dtype: torch.dtype) -> None:
    tensor = random_tensor(dtype, 40_000).abs() + 1
    tensor[::3] = -0.0
    tensor[1::3] = 0.0
    histogram = torch.zeros(NUM_BINS, dtype=torch.int64)
    assert measured(tensor, histogram=histogram, sample=3000)["counted"] == 3000
    assert int(histogram[NUM_BINS // 2 :].sum()) == 0
    assert abs(int(histogram[0]) - 2000) < 4.5 * math.sqrt(3000 * 2 / 9)


@pytest.mark.parametrize("period", [*(1 << k for k in range(1, 13)), 3, 5, 7, 48, 61, 100, 977])
@pytest.mark.parametrize("numel", [65_536, 262_144, 1_000_000])
def test_a_sample_leans_towards_no_period(period: int, numel: int) -> None:
    """The elements' place within the period decides their bin: the shares must be the same."""
    num_groups = min(period, 16)
    place = torch.arange(numel) % period * num_groups // period
    tensor = (2.0 ** place.float()).contiguous()
    wanted = np.bincount(place.numpy(), minlength=num_groups) / numel
    counts, row = torch.zeros(NUM_BINS, dtype=torch.int64), empty_rows()
    for _ in range(4):
        native.accumulate(tensor, row, counts, 4096)
    found = counts[(127 << 4) + 16 * torch.arange(num_groups)].numpy()
    total = found.sum()
    assert total == 4 * 4096
    error = (found - total * wanted) / np.sqrt(total * wanted * (1 - wanted))
    assert abs(error).max() < 4.5


def test_successive_tensors_are_sampled_in_different_places() -> None:
    tensor = torch.arange(1 << 20, dtype=torch.float32)
    row, histogram = empty_rows(), torch.zeros(2, NUM_BINS, dtype=torch.int64)
    for counts in histogram:
        native.accumulate(tensor, row, counts, 4096)
    assert not torch.equal(histogram[0], histogram[1])
    again, same = empty_rows(), torch.zeros(NUM_BINS, dtype=torch.int64)
    native.accumulate(tensor, again, same, 4096)
    assert torch.equal(same, histogram[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_samples_of_every_dtype_hold_only_what_is_there(dtype: torch.dtype) -> None:
    tensor = random_tensor(dtype, 50_000)
    histogram = torch.zeros(NUM_BINS, dtype=torch.int64)
    native.accumulate(tensor, empty_rows(), histogram, 1000)
    assert int(histogram.sum()) == 1000
    assert not (histogram.numpy() > expected_bins(tensor)).any()


# ------------------------------------------------------------------------------ channels and sums


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        *((512, 64, 1), (1, 64, 1), (7, 3, 1), (1500, 70, 1), (2100, 17, 1), (0, 5, 1), (3, 0, 1)),
        *((4, 8, 49), (2, 3, 5000), (40, 5, 9), (3, 5, 9), (1, 4, 4097), (2, 2, 8192), (3, 4, 0)),
    ],
    ids=str,
)
def test_channels_are_measured_apart(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    tensor = random_tensor(dtype, math.prod(shape)).reshape(shape)
    if dtype.is_floating_point and tensor.numel():
        flat = tensor.view(-1)
        flat[:: 11 + shape[1]] = 0
        flat[3 :: 101 + shape[1]] = math.nan
        flat[5 :: 203 + shape[1]] = -math.inf
        flat[-1] = torch.finfo(dtype).smallest_normal / 4
    rows = empty_rows(shape[1])
    native.accumulate_channels(tensor, rows)
    native.accumulate_channels(tensor[: shape[0] // 2], rows)
    for channel, row in enumerate(rows):
        both = torch.cat([tensor[:, channel].flatten(), tensor[: shape[0] // 2, channel].flatten()])
        assert_close(as_dict(row), expected(both), 1e-12)
        assert row[13] == 2


def test_channels_keep_a_small_spread_around_a_large_mean() -> None:
    tensor = torch.randn(3000, 20) * 1e-2 + torch.arange(20) * 1e3
    for shaped in (tensor[..., None], tensor.T[None].contiguous()):
        rows = empty_rows(20)
        native.accumulate_channels(shaped, rows)
        for channel, row in enumerate(rows):
            assert_close(as_dict(row), expected(shaped[:, channel]), 1e-12)


def test_threads_do_not_change_channels() -> None:
    for shape in ((40_000, 64, 1), (4, 64, 10_000)):
        tensor, rows = torch.randn(shape), empty_rows(2, 64)
        for threads, into in zip((1, 2), rows, strict=True):
            _kernel.accumulate_channels(tensor.data_ptr(), *shape, 0, into.data_ptr(), threads)
        assert torch.equal(rows[0], rows[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(64, 10), (1, 3), (0, 4), (33, 600), (5, 2, 3), (1000, 1)])
def test_sums_over_the_first_dim(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = random_tensor(dtype, math.prod(shape)).reshape(shape)
    if dtype.is_floating_point and tensor.numel() > 5:
        tensor.view(-1)[:6] = torch.tensor([1, 2, math.inf, -math.inf, math.nan, -0.0])
    sums = torch.ones(shape[1:], dtype=torch.float64)
    tensor = tensor.resolve_neg().contiguous()
    code = native.DTYPES[tensor.dtype]
    _kernel.accumulate_sum(tensor.data_ptr(), shape[0], sums.numel(), code, sums.data_ptr())
    torch.testing.assert_close(sums, 1 + tensor.double().sum(0), equal_nan=True)


# ------------------------------------------------------------------------------ layouts, the door


def test_any_layout_is_read_right() -> None:
    base = torch.randn(6, 5, 4, 7)
    views = [
        base.to(memory_format=torch.channels_last),
        base.transpose(0, 3),
        base[:, 1:3],
        base[:, :, ::2],
        base[2:3, :1].expand(9, 4, 4, 7),
        base.as_strided((5, 5), (1, 2)),
        base[0, 0, 0, 0],
        base[:0],
        base[:, :1].transpose(1, 2),
        torch.randn(6, dtype=torch.complex64).conj().imag,
        torch.nn.Parameter(base),
    ]
    for view in views:
        assert_close(measured(view), expected(view.detach().contiguous()), 1e-12)


def test_what_fills_its_memory_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda tensor: pytest.fail("copied"))
    base = torch.randn(6, 5, 4, 7)
    for view in (base, base.transpose(1, 2), base.to(memory_format=torch.channels_last), base[1]):
        assert measured(view)["numel"] == view.numel()


def test_measuring_changes_only_the_row() -> None:
    tensor = torch.randn(5000)
    before, version = tensor.clone(), tensor._version
    state = torch.get_rng_state()
    measured(tensor, histogram=torch.zeros(NUM_BINS, dtype=torch.int64), sample=100)
    assert torch.equal(tensor, before)
    assert tensor._version == version
    assert torch.equal(torch.get_rng_state(), state)


def test_draining_takes_every_count_and_leaves_none() -> None:
    tensors = [
        torch.randn(5000),
        torch.zeros(10),
        torch.tensor([]),
        torch.tensor([math.nan, math.inf, -math.inf]),
        torch.randn(300).double() * torch.logspace(-300, 300, 300, dtype=torch.float64),
        torch.tensor([1e-45, -0.0, 3e38, -2.0]),
        torch.arange(-100, 100, dtype=torch.int64),
    ]
    rows = torch.stack([empty_rows() for _ in tensors])
    histograms = torch.zeros(len(tensors), NUM_BINS, dtype=torch.int64)
    for number in range(2):
        for row, histogram, tensor in zip(rows, histograms, tensors, strict=True):
            native.accumulate(tensor * (number + 1), row, histogram)
    before = histograms.clone()
    bins, counts, ends = native.drain(rows, histograms)
    assert not histograms.any()
    starts = [0, *ends[:-1]]
    for full, start, end in zip(before, starts, ends, strict=True):
        found = torch.zeros(NUM_BINS, dtype=torch.int64)
        found[bins[start:end].astype("int64")] = torch.from_numpy(counts[start:end])
        assert torch.equal(found, full)


def test_wrong_arguments_are_refused() -> None:
    row = empty_rows().data_ptr()
    with pytest.raises(ValueError, match="dtype code"):
        _kernel.accumulate(0, 0, 10, row, 0, 0, 1)
    with pytest.raises(ValueError, match="negative"):
        _kernel.accumulate(0, -1, 0, row, 0, 0, 1)
    with pytest.raises(TypeError, match="takes 7"):
        _kernel.accumulate(0, 1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        _kernel.accumulate("0", 0, 0, row, 0, 0, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'sse9'"):
        _kernel.force("sse9")


def test_other_threads_run_during_a_large_call() -> None:
    tensor = torch.randn(6_000_000)
    seen: list[int] = []
    running = True

    def count() -> None:
        while running:
            seen.append(1)
            time.sleep(0)

    other = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    # No thread has to give up the GIL within this test: the other one runs only where the call
    # releases it.
    sys.setswitchinterval(100)
    other.start()
    try:
        row, histogram = empty_rows(), torch.zeros(NUM_BINS, dtype=torch.int64)
        arguments = (tensor.data_ptr(), tensor.numel(), 0, row.data_ptr(), histogram.data_ptr())
        before = len(seen)
        for _ in range(20):
            _kernel.accumulate(*arguments, 0, 1)
        during = len(seen) - before
    finally:
        running = False
        sys.setswitchinterval(interval)
        other.join()
    assert during > 0


@pytest.mark.slow
def test_threads_of_python_measure_at_once() -> None:
    tensors = [random_tensor(torch.float32, 300_000, seed) for seed in range(4)]
    rows, histograms = empty_rows(4), torch.zeros(4, NUM_BINS, dtype=torch.int64)

    def run(place: int) -> None:
        for _ in range(3):
            native.accumulate(tensors[place], rows[place], histograms[place])

    workers = [threading.Thread(target=run, args=(place,)) for place in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for tensor, row, histogram in zip(tensors, rows, histograms, strict=True):
        assert np.array_equal(histogram.numpy(), 3 * expected_bins(tensor))
        assert_close(as_dict(row), expected(tensor.repeat(3)), 1e-12)


_A_TRAINING = """
import torch, torchtap as tt
from torchtap.stats.kernels import native
assert not native.available() and not native.takes_calls()
model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.ReLU())
with torch.no_grad():
    model[0].weight.copy_(torch.tensor([[1.0, 2.0], [-3.0, 0.5]]))
with tt.watch(model, ["*:output,grad_output", "0:param"], to=tt.Stats()) as w:
    for _ in range(2):
        model(torch.tensor([[1.0, 1.0], [2.0, -1.0]])).square().sum().backward()
        w.step()
# The Linear returns [[3, -2.5], [0, -6.5]].
first, second = w.run.stats("0"), w.run.stats("1:grad_output", step=1)
assert (first.numel, first.mean, first.min, first.max, first.zeros) == (4, -1.5, -6.5, 3.0, 1)
assert (second.numel, second.mean, second.zeros) == (4, 1.5, 3)
assert w.run.stats("0:param[weight]", step=0).l1 == 6.5
assert first.histogram.counts.tolist() == [1, 1, 1, 1]
assert not list(w.absent)
"""
"""Watches where nothing is measured natively; numbers by hand."""


def test_without_the_binary_a_watch_measures_the_same() -> None:
    code = "import sys; sys.modules['torchtap.stats.kernels._kernel'] = None\n" + _A_TRAINING
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=dict(os.environ))


def test_a_binary_of_other_sources_says_build_again() -> None:
    name = "torchtap.stats.kernels._kernel"
    code = (
        "import sys, importlib.util\n"
        f"spec = importlib.util.spec_from_file_location({name!r}, {_kernel.__file__!r})\n"
        f"sys.modules[{name!r}] = older = importlib.util.module_from_spec(spec)\n"
        "del older.INTERFACE\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code + _A_TRAINING],
        check=True,
        env=dict(os.environ),
        capture_output=True,
        text=True,
    )
    assert "Build again" in done.stderr


def _listed(lists: native.SparseLog) -> dict[int, torch.Tensor]:
    """Full histograms by owner, of what was listed."""
    rows, closed = empty_rows(20).numpy(), list[Any]()
    rows[:, NUM_TENSORS] = 1
    blocks = native.TableBlocks(lambda: blocks.add_block(rows, None, lists), len(rows))
    assert [blocks.add_row(owner) for owner in range(20)] == list(range(20))
    blocks.close(closed)
    found = np.zeros((20, NUM_BINS), dtype=np.int64)
    for listed in native.read_closed(closed)[1]:
        native.add_lists(listed.drained, [found[:10], found[10:]], listed.places)
    owners = {int(owner) for one in native.read_closed(closed)[1] for owner in one.places}
    return {owner: torch.from_numpy(found[owner]) for owner in owners}


def test_lists_hold_what_the_histogram_would_and_the_rest_goes_there() -> None:
    # Small, sampled, too large for 16-bit counts, odd values, nothing, and wide numbers.
    tensors = [
        torch.randn(100),
        torch.randn(8192),
        torch.randn(20_000),
        torch.randn(70_000),
        torch.tensor([1e-45, -0.0, 0.0, -0.0, 3e38, -2.0, math.nan, math.inf, -math.inf]),
        torch.tensor([]),
        torch.full((9000,), -0.0),
        torch.randn(20_000).double(),
        torch.arange(-100, 100, dtype=torch.int64),
    ]
    for sample in (0, 2048):
        lists = native.SparseLog(40_000, 10)
        for number, tensor in enumerate(tensors):
            rows = torch.stack([empty_rows(), empty_rows()])
            histograms = torch.zeros(2, NUM_BINS, dtype=torch.int64)
            aim = native.KernelArgs(rows[0], histograms[0], sample, lists, number)
            code = native.DTYPES[tensor.dtype]
            for _ in range(2):
                native.take_address(tensor.data_ptr(), tensor.numel(), code, aim.address, 1)
                native.accumulate(tensor, rows[1], histograms[1], sample)
            listed = _listed(lists).get(number, torch.zeros(NUM_BINS, dtype=torch.int64))
            assert torch.equal(listed + histograms[0], histograms[1])
            assert torch.equal(rows[0, :15], rows[1, :15])
            is_listed = tensor.numel() <= 65_535 or sample > 0
            # The last field says that the full histogram is in use.
            assert bool(rows[0, 15]) is not is_listed
            assert histograms[0].any() or is_listed


def test_what_finds_no_room_in_the_lists_goes_into_the_histogram() -> None:
    tensor = torch.randn(100)
    for lists in (native.SparseLog(250, 10), native.SparseLog(1000, 2)):
        row, histogram = empty_rows(), torch.zeros(NUM_BINS, dtype=torch.int64)
        aim = native.KernelArgs(row, histogram, 0, lists, 0)
        for _ in range(5):
            native.take_address(tensor.data_ptr(), 100, 0, aim.address, 1)
        listed = _listed(lists)[0]
        assert 0 < listed.sum() < 500
        assert listed.sum() + histogram.sum() == row[14] == 500


def test_an_aim_sums_samples_until_it_is_told_not_to() -> None:
    tensor = torch.randint(-9, 9, (4, 3)).float()  # Summed without rounding.
    total = torch.zeros(3, dtype=torch.float64)
    num_samples = array("q", (0,))
    aim = native.KernelArgs(empty_rows(), None, 0, None, 0)
    aim.sum_into(total, num_samples)
    native.take_address(tensor.data_ptr(), 12, 0, aim.address, 1)
    aim.sum_into(None, None)
    native.take_address(tensor.data_ptr(), 12, 0, aim.address, 1)
    assert torch.equal(total, tensor.double().sum(0))
    assert num_samples[0] == 4


def test_a_tensor_that_replaces_another_leaves_nothing_of_it() -> None:
    # Into lists and past them, so that each kind follows each.
    tensors = [
        torch.randn(100),
        torch.randn(8192) * 1e-20,
        torch.randn(70_000),
        torch.tensor([1e-45, -0.0, 0.0, -0.0, 3e38, -2.0, math.nan, math.inf, -math.inf]),
        torch.full((3,), math.nan),
        torch.tensor([]),
        torch.full((9000,), -0.0),
        torch.randn(20_000).double(),
        torch.randn(300) * 1e-40,
    ]
    for sample in (0, 2048):
        for one, two in itertools.product(tensors, repeat=2):
            rows, full = empty_rows(2), torch.zeros(2, NUM_BINS, dtype=torch.int64)
            lists = native.SparseLog(20_000, 4)
            other = native.KernelArgs(rows[1], full[1], sample, lists, 1)
            aim = native.KernelArgs(rows[0], full[0], sample, lists, 0)
            for measure, tensor, into in (
                (_kernel.replace, one, aim),
                (_kernel.take, torch.ones(5), other),
                (_kernel.replace, two, aim),
            ):
                code = native.DTYPES[tensor.dtype]
                measure(tensor.data_ptr(), tensor.numel(), code, into.address, 1)
            expected_row, expected_full = empty_rows(1)[0], torch.zeros(NUM_BINS, dtype=torch.int64)
            native.accumulate(two, expected_row, expected_full, sample)
            listed = _listed(lists)
            assert torch.equal(full[0] + listed.get(0, 0), expected_full)
            assert torch.equal(rows[0, :15], expected_row[:15])
            assert listed[1].sum() == rows[1, 0] == 5
            assert set(listed) <= {0, 1}


def test_calls_of_the_kernel_keep_the_references_of_none() -> None:
    """With a binary that any version of Python compiled; from 3.12 on their number is constant."""
    x = torch.ones(3, 5)
    for options in ({}, {"histogram": False}, {"dim": 1}):
        tt.measure(x, **options)
        before = sys.getrefcount(None)
        for _ in range(1000):
            tt.measure(x, **options)
        assert abs(sys.getrefcount(None) - before) < 500


# --- is everything finite ---------------------------------------------------------------------


looks = pytest.mark.skipif(
    native.look_address is None,
    reason="the binary is older than its source: install torchtap again",
)


def ends(dtype: torch.dtype, size: int) -> torch.Tensor:
    """The largest and the smallest numbers in turns, none of which is an infinity."""
    info = torch.finfo(dtype)
    turn = [info.max, 0.0, info.min, info.smallest_normal / 2, -0.0, info.smallest_normal]
    return torch.tensor((turn * (size // 6 + 1))[:size], dtype=dtype)


@looks
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 31, 64, 259])
def test_a_number_that_is_not_finite_is_seen_wherever_it_stands(
    dtype: torch.dtype, size: int
) -> None:
    x, others = ends(dtype, size), list[torch.Tensor]()
    assert native.are_finite([x, x], others)
    for place in range(size):
        for bad in (torch.inf, -torch.inf, torch.nan, -torch.nan):
            one = x.clone()
            one[place] = bad
            assert not native.are_finite([x, one, x], others)
    assert not others


@looks
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_nan_of_any_bits_is_seen(dtype: torch.dtype) -> None:
    ints = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    infinite = torch.full((70,), torch.inf, dtype=dtype)
    least = (infinite.view(ints) + 1).view(dtype)  # One bit more than that of infinity.
    assert bool(least.isnan().all())
    assert not native.are_finite([least], [])
    assert not native.are_finite([(-least)[:1]], [])


@looks
def test_threads_share_the_elements_of_all_tensors() -> None:
    sizes = [1 << 20, 1, (1 << 20) + 3, 70]
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        tensors = [torch.zeros(size, dtype=torch.bfloat16) for size in sizes]
        assert native.are_finite(tensors, [])
        for one in tensors:
            for place in (0, len(one) // 3, len(one) // 2, len(one) - 1):
                one[place] = torch.nan
                assert not native.are_finite(tensors, [])
                one[place] = 0
    finally:
        torch.set_num_threads(before)


@looks
def test_tensors_that_do_not_lie_ready_are_left_to_others() -> None:
    x = torch.full((4, 6), torch.nan)
    left = [
        x[:, ::2],
        x.to_sparse(),
        x.to("meta"),
        x.to(torch.complex64),
        x.to(torch.float8_e5m2),
        torch._efficientzerotensor((2, 3)),
        torch.nn.Parameter(x),
        torch.nested.nested_tensor([x, x], layout=torch.jagged),
    ]
    others = list[torch.Tensor]()
    assert native.are_finite(left, others)
    assert [id(one) for one in others] == [id(one) for one in left]
    for one in (x.t(), x.expand(1, 4, 6), x[1:], -x):
        assert not native.are_finite([one], [])
    assert not native.are_finite([x.view(2, 3, 2, 2).to(memory_format=torch.channels_last)], [])
