"""The Triton kernels against float64 and against stock operations.

On a CUDA device where there is one. Elsewhere in Triton's interpreter, which runs the same code on
tensors of the CPU, slowly: in a process of its own, since Triton looks at ``TRITON_INTERPRET``
once, or in this one if it is set already.
"""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

import torchtap as tt
from torchtap.stats.histogram import Histogram
from torchtap.stats.kernels import cuda, native, stock
from torchtap.stats.rows import (
    M2,
    MEAN,
    NUM_COUNTED,
    NUM_FINITE,
    NUM_TENSORS,
    SUM_SQUARES,
    empty_rows,
)

HAS_TRITON = find_spec("triton") is not None
IS_INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"
HAS_CUDA = HAS_TRITON and torch.cuda.is_available() and not IS_INTERPRETED
DEVICE = "cuda" if HAS_CUDA else "cpu"

# The interpreter computes with NumPy, which warns of what a device does silently.
pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value|divide by zero|underflow) encountered:RuntimeWarning"
)
runs = pytest.mark.skipif(
    not (HAS_CUDA or IS_INTERPRETED),
    reason="needs Triton and a CUDA device, or Triton and TRITON_INTERPRET=1",
)
on_cuda = pytest.mark.skipif(not HAS_CUDA, reason="needs Triton and a CUDA device")

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DTYPES = list(native.DTYPES)
BLOCK, PART = cuda.BLOCK, cuda.BLOCK * cuda._LEAST_BLOCKS
COUNTS = [0, 1, 6, 7, 8, 9, 10, 11, 12, NUM_TENSORS]


# ------------------------------------------------------------------------------ what is expected


def on_device(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).to(dtype).to(DEVICE)


def random_tensor(dtype: torch.dtype, numel: int, seed: int = 0) -> torch.Tensor:
    """Elements of all sizes, and some of each kind that is counted apart."""
    torch.manual_seed(seed)
    if dtype is torch.bool:
        return (torch.rand(numel) < 0.3).to(DEVICE)
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        values = torch.randint(info.min, info.max, (numel,), dtype=dtype)
        values[torch.rand(numel) < 0.1] = 0
        return values.to(DEVICE)
    values = torch.randn(numel, dtype=torch.float64) * torch.exp(4 * torch.randn(numel))
    tiny = torch.finfo(dtype).tiny
    for odd in (0.0, -0.0, math.nan, math.inf, -math.inf, tiny / 2, -tiny / 4, tiny):
        values[torch.rand(numel) < 0.02] = odd
    # float16 ends at 65,504.
    values = torch.where(values.isfinite(), values.clamp(-6e4, 6e4), values)
    return values.to(dtype).to(DEVICE)


def new(count: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and histograms that hold nothing."""
    return empty_rows(count, DEVICE), torch.zeros(count, 8192, dtype=torch.int64, device=DEVICE)


def measured(*tensors: torch.Tensor, sample: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rows, histograms = new()
    for tensor in tensors:
        cuda.accumulate(tensor, rows[0], histograms[0], sample)
    return rows[0].cpu(), histograms[0].cpu()


def by_stock(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    row, histogram = empty_rows(1)[0], torch.zeros(8192, dtype=torch.int64)
    for tensor in tensors:
        stock.accumulate(tensor.cpu(), row, histogram)
    return row, histogram


def expected(tensor: torch.Tensor) -> dict[str, float]:
    """Sums without any rounding but of the elements to float64."""
    values = tensor.reshape(-1).to(torch.float64).cpu()
    values = values[values.isfinite()]
    mean = math.fsum((values / max(len(values), 1)).tolist())
    deviations = (values - mean).tolist()
    rest = math.fsum(deviations)
    return {
        "mean": mean,
        "m2": math.fsum(d * d for d in deviations) - rest * rest / max(len(values), 1),
        "l1": math.fsum(values.abs().tolist()),
        "squares": math.fsum(v * v for v in values.tolist()),
    }


def assert_right(tensor: torch.Tensor, row: torch.Tensor) -> None:
    """Sums are as in float64, and counts as stock operations have them."""
    wanted = expected(tensor)
    assert row[COUNTS].tolist() == by_stock(tensor)[0][COUNTS].tolist()
    size = wanted["l1"] / max(tensor.numel(), 1)
    assert row[4].item() == pytest.approx(wanted["l1"], rel=1e-12)
    assert row[SUM_SQUARES].item() == pytest.approx(wanted["squares"], rel=1e-12)
    assert row[MEAN].item() == pytest.approx(wanted["mean"], rel=1e-12, abs=1e-12 * size)
    floor = 1e-30 * wanted["squares"]
    assert row[M2].item() == pytest.approx(wanted["m2"], rel=1e-9, abs=floor)


def assert_same(row: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(row.cpu(), other.cpu(), rtol=1e-11, atol=1e-11)


# ------------------------------------------------------------------------------ one tensor


@pytest.mark.skipif(
    not HAS_TRITON or HAS_CUDA or IS_INTERPRETED,
    reason="needs Triton; with a CUDA device or in the interpreter the tests run right here",
)
def test_everything_here_holds_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


@runs
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_everything_is_as_in_float64_and_as_stock_operations_have_it(dtype: torch.dtype) -> None:
    tensor = random_tensor(dtype, 3 * PART + 77)
    row, histogram = measured(tensor)
    assert_right(tensor, row)
    assert_same(row, by_stock(tensor)[0])
    assert histogram.equal(by_stock(tensor)[1])


@runs
@pytest.mark.parametrize("numel", [1, 2, *(n + d for n in (BLOCK, PART) for d in (-1, 0, 1))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_lengths_around_the_borders_of_blocks_and_parts(dtype: torch.dtype, numel: int) -> None:
    tensor = random_tensor(dtype, numel, seed=numel)
    row, histogram = measured(tensor)
    assert_right(tensor, row)
    assert histogram.equal(by_stock(tensor)[1])


@runs
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_of_an_empty_tensor_only_its_being_there_is_known(dtype: torch.dtype) -> None:
    rows, histograms = new()
    nothing = rows[0].clone()
    nothing[NUM_TENSORS] = 2
    empty = torch.empty(0, 3, dtype=dtype, device=DEVICE)
    cuda.accumulate(empty, rows[0], histograms[0])
    cuda.accumulate(empty, rows[0], histograms[0], 10)
    assert rows[0].equal(nothing)
    assert not histograms.any()


@runs
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, -0.0, "subnormal", 3.0])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_odd_elements_are_seen_wherever_they_are(dtype: torch.dtype, odd: float | str) -> None:
    value = torch.finfo(dtype).tiny / 2 if odd == "subnormal" else float(odd)
    for place in (0, 5, BLOCK - 1, BLOCK, PART - 1, PART, PART + BLOCK + 10):
        tensor = torch.ones(PART + BLOCK + 11, dtype=dtype, device=DEVICE)
        tensor[place] = value
        row, histogram = measured(tensor)
        assert_same(row, by_stock(tensor)[0])
        assert histogram.equal(by_stock(tensor)[1])


@runs
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -0.0, 1e-310])
def test_tensors_without_an_ordinary_element(value: float) -> None:
    tensor = torch.full((PART + 1,), value, dtype=torch.float64, device=DEVICE)
    row, histogram = measured(tensor)
    assert_same(row[: NUM_COUNTED + 1], by_stock(tensor)[0][: NUM_COUNTED + 1])
    assert not row.isnan().any()
    assert histogram.equal(by_stock(tensor)[1])


@runs
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_element_that_two_bytes_can_hold(dtype: torch.dtype) -> None:
    tensor = torch.arange(-(2**15), 2**15).to(torch.int16).to(DEVICE).view(dtype)
    row, histogram = measured(tensor)
    assert row[COUNTS].tolist() == by_stock(tensor)[0][COUNTS].tolist()
    assert histogram.equal(by_stock(tensor)[1])


@runs
def test_both_sides_of_every_bin_boundary_of_float32() -> None:
    edges = torch.arange(0, 0x7F80, 8, dtype=torch.int64) << 16
    bits = torch.cat([edges, (edges - 1).clamp(min=0), edges + 1])
    values = bits.to(torch.int32).view(torch.float32)
    tensor = torch.cat([values, -values]).to(DEVICE)
    assert measured(tensor)[1].equal(by_stock(tensor)[1])


@runs
def test_float64_goes_where_its_float32_rounded_towards_zero_would() -> None:
    smallest, largest = 2.0**-149, torch.finfo(torch.float32).max
    sizes = [5e-324, smallest / 2, smallest * 0.999, smallest, smallest * 1.5, 2.0**-130]
    sizes += [math.nextafter(2.0**-126, 0), 2.0**-126, math.nextafter(1.0, 0), 1.0]
    sizes += [largest, math.nextafter(largest, math.inf), 2.0**128, 1e300]
    tensor = on_device(*sizes, *(-size for size in sizes), dtype=torch.float64)
    assert measured(tensor)[1].equal(by_stock(tensor)[1])


@runs
def test_wide_integers() -> None:
    ends = [torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max, 2**53 + 1, -1, 0]
    tensor = torch.tensor(ends, dtype=torch.int64, device=DEVICE)
    row, histogram = measured(tensor)
    assert_same(row[:3] / row[:3].abs().clamp(min=1), by_stock(tensor)[0][:3].sign())
    assert row[COUNTS].tolist() == by_stock(tensor)[0][COUNTS].tolist()
    assert histogram.equal(by_stock(tensor)[1])


# ------------------------------------------------------------------------------ rounding


@runs
@pytest.mark.parametrize("start", ["as all", "nan", "zero"])
def test_a_large_mean_leaves_a_small_variance_right(start: str) -> None:
    torch.manual_seed(1)
    tensor = 1e4 + 1e-2 * torch.randn(5 * PART + 3, dtype=torch.float64)
    tensor[:BLOCK] = {"as all": tensor[:BLOCK], "nan": math.nan, "zero": 0.0}[start]  # type: ignore[assignment]
    for one in (tensor.to(DEVICE), tensor.float().to(DEVICE)):
        assert_right(one, measured(one)[0])


@runs
def test_one_outlier_apart_the_rest_keeps_its_variance() -> None:
    torch.manual_seed(2)
    tensor = torch.randn(2 * PART, dtype=torch.float64).to(DEVICE)
    tensor[0] = 1e8
    assert_right(tensor, measured(tensor)[0])


@runs
@pytest.mark.parametrize("size", [1e20, 1e-25])
def test_squares_beyond_float32(size: float) -> None:
    tensor = on_device(*([size, -size, 2 * size] * BLOCK))
    assert_right(tensor, measured(tensor)[0])


@runs
def test_squares_beyond_float64_are_infinite_and_not_nan() -> None:
    tensor = on_device(*([1e300, -1e300, 3e299] * BLOCK), dtype=torch.float64)
    row, _ = measured(tensor, tensor)
    assert row[MEAN].item() == pytest.approx(1e299, rel=1e-12)
    assert row[M2] == row[SUM_SQUARES] == math.inf


@runs
def test_the_same_tensor_always_gives_the_same_bits() -> None:
    tensor = random_tensor(torch.float32, 9 * PART + 1)
    first, histogram = measured(tensor, sample=100)
    for _ in range(3):
        again, counts = measured(tensor, sample=100)
        assert again.equal(first)
        assert counts.equal(histogram)


@runs
@pytest.mark.parametrize("numel", [2 * PART, 4 * PART + 1, 11 * PART - 1, 16 * PART + BLOCK])
def test_long_tensors_are_cut_into_long_parts(numel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "MAX_PARTS", 4)
    tensor = random_tensor(torch.float32, numel)
    assert cuda._split(numel)[0] <= 4
    row, histogram = measured(tensor)
    assert_right(tensor, row)
    assert histogram.equal(by_stock(tensor)[1])


@pytest.mark.parametrize("numel", [0, 1, BLOCK, 10**5, 10**7, 2**31, 10**12 + 1])
def test_parts_are_few_and_hold_everything(numel: int) -> None:
    num_parts, blocks = cuda._split(numel)
    assert 1 <= num_parts <= cuda.MAX_PARTS
    assert (num_parts - 1) * blocks * BLOCK < max(numel, 1) <= max(num_parts * blocks * BLOCK, 1)


# ------------------------------------------------------------------------------ merging


@runs
def test_parts_of_different_means_merge_into_the_whole() -> None:
    torch.manual_seed(3)
    parts = [torch.randn(n) * s + m for n, m, s in [(7, 0, 1), (PART + 5, 50, 3), (900, -9, 0)]]
    parts = [*(part.to(DEVICE) for part in parts), torch.empty(0, device=DEVICE)]
    parts.insert(1, on_device(math.nan, math.inf))
    row, histogram = measured(*parts)
    assert row[NUM_TENSORS] == 5
    row[NUM_TENSORS] = 1
    assert_right(torch.cat(parts), row)
    assert histogram.equal(by_stock(*parts)[1])


@runs
def test_what_a_row_already_holds_stays_in_it() -> None:
    before, tensor = random_tensor(torch.float16, 300), random_tensor(torch.int32, PART + 9)
    rows, histograms = new()
    stock.accumulate(before, rows[0], histograms[0])
    cuda.accumulate(tensor, rows[0], histograms[0])
    assert_same(rows[0], by_stock(before, tensor)[0])
    assert histograms[0].cpu().equal(by_stock(before, tensor)[1])


@runs
def test_measuring_changes_nothing_but_its_row_and_histogram() -> None:
    tensor = random_tensor(torch.float32, PART + 9)
    rows, histograms = new(3)
    before = rows.clone(), tensor.clone(), tensor._version
    cuda.accumulate(tensor, rows[1], histograms[1])
    assert rows[[0, 2]].equal(before[0][[0, 2]])
    assert not histograms[[0, 2]].any()
    assert tensor.view(torch.int32).equal(before[1].view(torch.int32))
    assert tensor._version == before[2]


@runs
def test_without_a_histogram_nothing_is_counted() -> None:
    tensor = random_tensor(torch.float32, PART + 9)
    for sample in (0, 50):
        rows, _ = new()
        cuda.accumulate(tensor, rows[0], None, sample)
        assert rows[0, NUM_COUNTED] == 0
        assert_right(tensor, rows[0].cpu())


# ------------------------------------------------------------------------------ layouts


@runs
def test_any_layout_is_read_right() -> None:
    base = random_tensor(torch.float32, 24 * 30 * 10).reshape(24, 30, 10)
    parameter = base.clone().requires_grad_()
    for tensor in (
        base.permute(2, 0, 1),
        base[:, ::2],
        base[3:, 1:, 1:],
        base[0, :1].expand(50, 10),
        base.flatten()[1:],
        base.flatten()[3::7],
        base[0, 0, 0],
        torch._neg_view(base),
        parameter,
    ):
        row, histogram = measured(tensor)
        assert_right(tensor.detach(), row)
        assert histogram.equal(by_stock(tensor.detach())[1])


@runs
def test_what_fills_its_memory_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = random_tensor(torch.float32, 60).reshape(3, 4, 5).permute(2, 0, 1)
    monkeypatch.setattr(torch.Tensor, "contiguous", None)
    assert_right(tensor.reshape(-1), measured(tensor)[0])


# ------------------------------------------------------------------------------ samples


@runs
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sample_holds_only_what_is_there_and_nothing_that_is_not_finite(
    dtype: torch.dtype,
) -> None:
    tensor = random_tensor(dtype, 2 * PART + 5)
    row, histogram = measured(tensor, sample=1500)
    everything = by_stock(tensor)[1]
    assert (histogram <= everything).all()
    assert histogram.sum() == row[NUM_COUNTED] <= 1500
    share = (row[NUM_FINITE] / row[0]).item()
    assert row[NUM_COUNTED].item() == pytest.approx(1500 * share, abs=60)
    assert_right(tensor, row)


@runs
@pytest.mark.parametrize("extra", [0, 1, 2])
def test_up_to_the_size_of_the_sample_everything_is_counted(extra: int) -> None:
    tensor = torch.randn(BLOCK + extra).to(DEVICE)
    row, histogram = measured(tensor, sample=BLOCK + 1)
    assert row[NUM_COUNTED] == histogram.sum() == min(BLOCK + extra, BLOCK + 1)


@runs
@pytest.mark.parametrize("numel", [3001, 3 * PART + 1])
@pytest.mark.parametrize("sample", [64, 1000, 3000])
def test_there_is_one_element_of_each_stratum(numel: int, sample: int) -> None:
    strata = torch.arange(sample + 1) * numel // sample
    places = torch.arange(numel)
    # Eight strata after each other have bins of their own.
    number = torch.searchsorted(strata, places, right=True) - 1
    tensor = (2.0 ** ((number % 64) - 32)).to(torch.float32).to(DEVICE)
    counts = measured(tensor, sample=sample)[1]
    wanted = torch.bincount(torch.arange(sample) % 64, minlength=64)
    assert counts[counts > 0].tolist() == wanted[wanted > 0].tolist()


@runs
@pytest.mark.parametrize("period", [2, 3, 8, 10, 64, 100])
@pytest.mark.parametrize("numel", [2**15, 3 * PART + 11])
def test_a_sample_leans_towards_no_period(period: int, numel: int) -> None:
    tensor = (2.0 ** (torch.arange(numel) % period - period // 2)).to(DEVICE)
    counts = measured(tensor, sample=2048)[1]
    counts = counts[counts > 0]
    assert len(counts) == period
    # At random it would be sqrt(2048 / period), about; five times that never happens.
    assert (counts - 2048 / period).abs().max() < 5 * math.sqrt(2048 / period)


@runs
def test_quantiles_of_a_sample_are_near_those_of_everything() -> None:
    torch.manual_seed(4)
    tensor = torch.randn(40_000).to(DEVICE)
    histogram = Histogram.of(measured(tensor, sample=4096)[1], is_sample=True)
    for q in (0.05, 0.25, 0.5, 0.75, 0.95):
        rank = (tensor < histogram.quantile(q)).double().mean().item()
        # A bin's width and four standard errors.
        assert rank == pytest.approx(q, abs=0.01 + 4 * math.sqrt(q * (1 - q) / 4096))


# ------------------------------------------------------------------------------ who is asked


def test_tensors_of_the_cpu_are_not_for_these_kernels() -> None:
    assert not cuda.available(torch.ones(3))


def test_importing_torchtap_does_not_import_triton() -> None:
    code = (
        "import sys, torch\n"
        "sys.modules.pop('triton', None)\n"
        "import torchtap\n"
        "torchtap.measure(torch.ones(3))\n"
        "print('triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_triton_there_are_no_kernels_and_no_error() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from torchtap.stats.kernels import cuda, cuda_kernel\n"
        "assert cuda.kernels() is None and cuda_kernel.measure_parts is None\n"
        "assert cuda._works(0) is False\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ------------------------------------------------------------------------------ on a device only


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


@on_cuda
def test_cuda_tensors_are_measured_by_these_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock, "accumulate", None)
    assert cuda.available(on_device(1.0))
    assert tt.measure(on_device(3.0, -4.0, math.nan)).l2 == 5


@on_cuda
def test_a_watched_step_never_waits_for_the_device() -> None:
    watched = model().cuda()
    inputs = torch.randn(8, 64, device="cuda")
    optimizer = torch.optim.SGD(watched.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        watched(inputs).square().mean().backward()
        optimizer.step()

    with tt.watch(watched, "*:output,grad_output,param_grad", to=tt.Stats()) as w:
        for _ in range(3):
            step()
            w.step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
            w.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert w.run.stats("0:output").numel == 8 * 128


@on_cuda
def test_a_watched_model_is_measured_as_on_the_cpu() -> None:
    plain = model().double()
    inputs = torch.randn(300, 64, dtype=torch.float64)
    runs_of = []
    for device in ("cpu", "cuda"):
        watched = copy.deepcopy(plain).to(device)
        with tt.watch(watched, "*:output,grad_output,param_grad", to=tt.Stats(exact=True)) as w:
            watched(inputs.to(device)).square().mean().backward()
        runs_of.append(w.run)
    for site in ("0:output", "1:output", "2:output", "0:grad_output", "0:param_grad[weight]"):
        on_cpu, on_gpu = runs_of[0].stats(site), runs_of[1].stats(site)
        for name, value in on_cpu.numbers().items():
            assert on_gpu.numbers()[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
        assert on_gpu.quantile(0.5) == pytest.approx(on_cpu.quantile(0.5), rel=0.1, abs=1e-6)


@on_cuda
def test_what_is_captured_in_a_graph_measures_at_every_replay() -> None:
    tensors = [torch.zeros(n, device="cuda") for n in (100, 3 * PART + 1)]
    rows, histograms = new(2)

    def measure() -> None:
        for tensor, row, histogram in zip(tensors, rows, histograms, strict=True):
            cuda.accumulate(tensor, row, histogram, 4096)

    for tensor, row, histogram in zip(tensors, *new(2), strict=True):
        cuda.accumulate(tensor, row, histogram, 4096)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        measure()
    wanted, counts = new(2)
    for seed in range(3):
        for tensor, row, histogram in zip(tensors, wanted, counts, strict=True):
            tensor.copy_(random_tensor(torch.float32, tensor.numel(), seed=seed))
            cuda.accumulate(tensor, row, histogram, 4096)
        graph.replay()
    assert rows.equal(wanted)
    assert histograms.equal(counts)


@on_cuda
def test_memory_does_not_grow() -> None:
    tensors = [random_tensor(torch.float32, 5 * PART).t() for _ in range(4)]
    rows, histograms = new(4)

    def measure() -> None:
        for tensor, row, histogram in zip(tensors, rows, histograms, strict=True):
            cuda.accumulate(tensor, row, histogram)

    for _ in range(3):
        measure()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(50):
        measure()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before


@on_cuda
def test_another_stream_is_measured_on_that_stream() -> None:
    tensor = random_tensor(torch.float32, 100 * PART)
    rows, histograms = new()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        late = tensor * 1
        cuda.accumulate(late, rows[0], histograms[0])
    torch.cuda.current_stream().wait_stream(side)
    assert rows[0].cpu().equal(measured(tensor)[0])


@pytest.mark.skipif(
    not HAS_CUDA or torch.cuda.device_count() < 2, reason="needs Triton and two CUDA devices"
)
def test_a_tensor_is_measured_on_its_own_device() -> None:
    tensor = random_tensor(torch.float32, PART + 1).to("cuda:1")
    row = empty_rows(1, "cuda:1")[0]
    cuda.accumulate(tensor, row)
    assert_right(tensor, row.cpu())
