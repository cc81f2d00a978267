"""Measures the native kernel: ratios to ``torch.sum`` and to stock operations.

    python benchmarks/kernel.py [--rounds 25] [--markdown FILE]

One thread. Each row measures its calls in turns in one run, and compares the fastest block of
each, which is what is left when other programs on the machine are quiet. The table goes to stdout.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor

import torchtap as tt
from torchtap.stats.kernels import _kernel, native

Call = Callable[[], object]
NUM_STATISTICS = 11
SAMPLE = 4096


@dataclass(frozen=True)
class Result:
    """One row: microseconds of the yardstick and of ours."""

    what: str
    yardstick: str
    before: float
    ours: float
    wanted: str

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        ratio = self.ours / self.before
        shown = f"{ratio:.2f}x" if ratio > 0.1 else f"1/{1 / ratio:.0f}"
        return (self.what, self.yardstick, duration(self.before), duration(self.ours), shown)


def duration(microseconds: float) -> str:
    """With three digits."""
    if microseconds < 1000:
        return f"{microseconds:.3g} us"
    return f"{microseconds / 1000:.3g} ms"


def fastest(calls: Sequence[Call], *, rounds: int, numel: int) -> list[float]:
    """Microseconds of each call: the fastest block of each, measured in turns."""
    repeats = max(1, 400_000 // max(numel, 1))
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for place, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            best[place] = min(best[place], (time.perf_counter() - start) / repeats * 1e6)
    return best


class Target:
    """A row and a histogram to measure into."""

    def __init__(self) -> None:
        self.row = torch.zeros(16, dtype=torch.float64)
        self.row[6], self.row[7] = torch.inf, -torch.inf
        self.histogram = torch.zeros(8192, dtype=torch.int64)

    def call(self, tensor: Tensor, *, histogram: bool = False, sample: int = 0) -> Call:
        """The whole Python call, addresses included; it holds on to what they are of."""
        code, row = native.DTYPES[tensor.dtype], self.row.data_ptr()
        counts = self.histogram.data_ptr() if histogram else 0
        accumulate = native.accumulate_address

        def measure(keep: Target = self) -> None:
            accumulate(tensor.data_ptr(), tensor.numel(), code, row, counts, sample, 1)

        return measure


def against_sum(tensor: Tensor, rounds: int, name: str, wanted: Sequence[str]) -> list[Result]:
    """Statistics alone, with all of the histogram, and with a sample of it."""
    target = Target()
    ways = {
        "statistics": target.call(tensor),
        "with every element in the histogram": target.call(tensor, histogram=True),
        f"with a sample of {SAMPLE:,}": target.call(tensor, histogram=True, sample=SAMPLE),
    }
    before, *ours = fastest([tensor.sum, *ways.values()], rounds=rounds, numel=tensor.numel())
    limits = [*wanted, *["-"] * 3]
    return [
        Result(f"{name}, {way}", "torch.sum", before, one, limit)
        for way, one, limit in zip(ways, ours, limits, strict=False)
    ]


def float32_by_size(rounds: int) -> list[Result]:
    """From a small activation to one that is in no cache."""
    rows = []
    for numel, wanted in (
        (1_000, ["< 1.5 us"]),
        (8_192, ["-"]),
        (100_000, ["-"]),
        (1_000_000, ["<= 2.5x"]),
        (10_000_000, ["<= 1.6x", "<= 9x"]),
    ):
        rows += against_sum(torch.randn(numel), rounds, f"float32[{numel:,}]", wanted)
    return rows


def one_call(rounds: int) -> list[Result]:
    """``tt.measure`` of a small tensor, with the result that it makes."""
    tensor = torch.randn(1_000)
    ways: dict[str, tuple[Call, str]] = {
        "histogram=False": (lambda: tt.measure(tensor, histogram=False), "< 12 us"),
        "with histogram": (lambda: tt.measure(tensor), "< 20 us"),
    }
    calls = [tensor.sum, *(call for call, _ in ways.values())]
    before, *ours = fastest(calls, rounds=rounds, numel=tensor.numel())
    return [
        Result(f"tt.measure of float32[1,000], {way}", "torch.sum", before, one, limit)
        for (way, (_, limit)), one in zip(ways.items(), ours, strict=True)
    ]


def other_values(rounds: int) -> list[Result]:
    """Values that make the kernel look twice."""
    relu, shifted, holes = torch.randn(3, 1_000_000)
    relu, shifted = relu.relu(), shifted + 1000
    holes[::1000] = torch.nan
    return [
        against_sum(tensor, rounds, f"float32[1,000,000] {name}", ["-"])[0]
        for name, tensor in (
            ("after a ReLU", relu),
            ("of mean 1000 and std 1", shifted),
            ("with 0.1 % NaN", holes),
        )
    ]


def other_dtypes(rounds: int) -> list[Result]:
    """One million elements of each."""
    source = torch.randn(1_000_000).abs() * 30
    rows = []
    for dtype in native.DTYPES:
        if dtype is not torch.float32:
            name = f"{str(dtype).removeprefix('torch.')}[1,000,000]"
            wanted = ["<= 3.5x" if dtype is torch.bfloat16 else "-"]
            rows += against_sum(source.to(dtype), rounds, name, wanted)[:1]
    return rows


def stock_separate(tensor: Tensor) -> list[Tensor]:
    """Eleven statistics by one operation for each."""
    finite = tensor.isfinite()
    values = torch.where(finite, tensor, 0.0)
    wide = values.double()
    return [
        *(finite.sum(), wide.mean(), wide.var(), wide.abs().sum(), wide.square().sum()),
        *torch.aminmax(values),
        *((tensor == 0).sum(), tensor.isnan().sum()),
        *(tensor.isposinf().sum(), tensor.isneginf().sum()),
    ]


def stock_fused(tensor: Tensor) -> list[Tensor]:
    """Stock numbers of a finite tensor, by operations that give several at once."""
    low, high = torch.aminmax(tensor)
    variance, mean = torch.var_mean(tensor)
    norms = [torch.linalg.vector_norm(tensor, order) for order in (1, 2)]
    zeros = tensor.numel() - torch.count_nonzero(tensor)
    return [low, high, variance, mean, *norms, zeros, tensor.isfinite().sum()]


def stock_chunks(tensor: Tensor) -> list[list[Tensor]]:
    """The latter over parts that stay in the cache."""
    return [stock_fused(chunk) for chunk in tensor.split(1 << 15)]


def against_stock(rounds: int) -> list[Result]:
    """The fastest combination of stock operations, and each channel apart."""
    tensor = torch.randn(1_000_000)
    ways = (stock_separate, stock_fused, stock_chunks)
    calls: list[Call] = [lambda way=way: way(tensor) for way in ways]  # type: ignore[misc]
    best = fastest([Target().call(tensor), *calls], rounds=rounds, numel=tensor.numel())
    ours, *stock = best
    return [
        Result("float32[1,000,000], statistics", way.__name__, before, ours, "1/10")
        for way, before in zip(ways, stock, strict=True)
    ]


def channels_and_sums(rounds: int) -> list[Result]:
    """Slices of activations apart."""
    rows = []
    for shape in ((512, 64, 1), (20_000, 64, 1), (8, 64, 3136), (8, 512, 49)):
        tensor, table = torch.randn(shape), torch.zeros(shape[1], 16, dtype=torch.float64)

        def measure(tensor: Tensor = tensor, table: Tensor = table) -> None:
            native.accumulate_channels(tensor, table)

        best = fastest([tensor.sum, measure], rounds=rounds, numel=tensor.numel())
        rows.append(Result(f"float32{list(shape)}, each of dim 1", "torch.sum", *best, "-"))
    for shape in ((64, 128), (256, 4096)):
        tensor, sums = torch.randn(shape), torch.zeros(shape[1:], dtype=torch.float64)

        def add(tensor: Tensor = tensor, sums: Tensor = sums) -> None:
            native.kernel().accumulate_sum(
                tensor.data_ptr(),
                len(tensor),
                sums.numel(),
                native.DTYPES[tensor.dtype],
                sums.data_ptr(),
            )

        def stock(tensor: Tensor = tensor, sums: Tensor = sums) -> None:
            sums.add_(tensor.sum(0, dtype=torch.float64))

        best = fastest([stock, add], rounds=rounds, numel=tensor.numel())
        rows.append(Result(f"float32{list(shape)}, sum over dim 0", "sum + add_", *best, "-"))
    return rows


def cpu_model() -> str:
    """The call as the kernel of the system gets it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")


def table(rows: Sequence[Result]) -> str:
    """In Markdown."""
    lines = ["| what | against | it takes | ours | ratio | wanted |", "|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join((*row.cells(), row.wanted)) + " |" for row in rows]
    return "\n".join(lines)


def page(rows: Sequence[Result], command: str) -> str:
    """The table and what it was measured with."""
    return "\n".join(
        [
            "# What measuring costs",
            "",
            f"`{command}`, one thread, fastest block of each call, in turns in one run.",
            f"Python {platform.python_version()}, torch {torch.__version__}, "
            f"{platform.system()}, {cpu_model()}, {os.cpu_count()} cores, "
            f"kernel: {_kernel.capabilities()}.",
            "",
            f'"Statistics" are {NUM_STATISTICS} and more: number of elements, of finite ones, of',
            "zeros, NaN, Inf, -Inf and subnormals; mean, variance, L1, L2, min and max. Every",
            "sum is kept in float64. Times are of the whole Python call.",
            "",
            table(rows),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--markdown", type=Path, help="write the table there too")
    parser.add_argument("--force", default="", help="avx512, avx2 or baseline")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    _kernel.force(arguments.force)
    rows: list[Result] = []
    for measure in (
        float32_by_size,
        one_call,
        other_values,
        other_dtypes,
        channels_and_sums,
        against_stock,
    ):
        rows += measure(arguments.rounds)
        print(f"{measure.__name__} done", file=sys.stderr)
    command = "python benchmarks/kernel.py"
    command += f" --rounds {arguments.rounds}" if arguments.rounds != 25 else ""
    text = page(rows, command + (f" --force {arguments.force}" if arguments.force else ""))
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
