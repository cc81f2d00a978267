"""Measures the native kernel: ratios to ``torch.sum`` and to stock operations.

    python benchmarks/kernel.py [--rounds 25] [--markdown FILE] [--before BINARY] [--force avx2]

One thread. Each row measures its calls in turns in one run, in time that the thread computed. Given
are the medians of the rounds; a ratio is the median of the ratios within each round. ``--before``
takes an older binary of the kernel along, in the same turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor

import torchtap as tt
from torchtap.stats.kernels import _kernel, native
from torchtap.stats.readable import SAMPLE
from torchtap.stats.rows import NUM_TENSORS

Call = Callable[[], object]
NUM_STATISTICS = 11
WANTED = {"avx512": ("<= 1.6x", "<= 1.2x"), "avx2": ("<= 2.5x", "<= 1.5x")}
"""Statistics of float32 at most, in ``torch.sum``: one million elements, and ten."""
OLDER: list[Any] = []
"""An older binary, if there is one to compare with."""


@dataclass(frozen=True)
class Result:
    """One row: microseconds of the yardstick, of ours and of an older binary, by round."""

    what: str
    yardstick: str
    times: Sequence[Sequence[float]]
    wanted: str

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        before, ours, *older = self.times
        ratio = median(b / a for a, b in zip(before, ours, strict=True))
        shown = f"{ratio:.2f}x" if ratio > 0.1 else f"1/{1 / ratio:.0f}"
        gained = [median(b / a for a, b in zip(one, ours, strict=True)) for one in older]
        columns = [duration(median(one)) for one in self.times]
        if OLDER:
            columns += [""] * (3 - len(columns))
            shown += "" if not gained else f" ({gained[0]:.2f} of before)"
        return (self.what, self.yardstick, *columns, shown, self.wanted)


def duration(microseconds: float) -> str:
    """With three digits."""
    if microseconds < 1000:
        return f"{microseconds:.3g} us"
    return f"{microseconds / 1000:.3g} ms"


def in_turns(calls: Sequence[Call], *, rounds: int, numel: int) -> list[list[float]]:
    """Microseconds of each call, by round."""
    repeats = max(1, 400_000 // max(numel, 1))
    found: list[list[float]] = [[] for _ in calls]
    for number in range(rounds):
        for turn in range(len(calls)):
            place = (number + turn) % len(calls)  # Whoever comes first finds colder caches.
            start = time.thread_time()
            for _ in range(repeats):
                calls[place]()
            found[place].append((time.thread_time() - start) / repeats * 1e6)
    return found


class Target:
    """A row and a histogram to measure into, with one binary."""

    def __init__(self, kernel: Any = _kernel) -> None:
        self.accumulate = kernel.accumulate
        self.row = torch.zeros(16, dtype=torch.float64)
        self.row[6], self.row[7] = torch.inf, -torch.inf
        self.histogram = torch.zeros(8192, dtype=torch.int64)

    def call(self, tensor: Tensor, *, histogram: bool = False, sample: int = 0) -> Call:
        """The whole Python call, addresses included; it holds on to what they are of."""
        code, row = native.DTYPES[tensor.dtype], self.row.data_ptr()
        counts = self.histogram.data_ptr() if histogram else 0
        accumulate, numbers = self.accumulate, self.row.numpy()

        def measure(keep: Target = self) -> None:
            numbers[NUM_TENSORS] = 0  # As in a new step.
            accumulate(tensor.data_ptr(), tensor.numel(), code, row, counts, sample, 1)

        return measure


WAYS: dict[str, dict[str, Any]] = {
    "statistics": {},
    "with every element in the histogram": {"histogram": True},
    f"with a sample of {SAMPLE:,}": {"histogram": True, "sample": SAMPLE},
}


def against_sum(
    tensor: Tensor, rounds: int, name: str, wanted: Sequence[str], ways: int = len(WAYS)
) -> list[Result]:
    """Statistics alone, with all of the histogram, and with a sample of it."""
    asked = list(WAYS.items())[:ways]
    calls: list[Call] = [tensor.sum]
    for kernel in (_kernel, *OLDER):
        calls += [Target(kernel).call(tensor, **options) for _, options in asked]
    before, *others = in_turns(calls, rounds=rounds, numel=tensor.numel())
    limits = [*wanted, *["-"] * len(asked)]
    return [
        Result(f"{name}, {way}", "torch.sum", [before, *others[place :: len(asked)]], limit)
        for place, ((way, _), limit) in enumerate(zip(asked, limits, strict=False))
    ]


def float32_by_size(rounds: int) -> list[Result]:
    """From a small activation to one that is in no cache."""
    rows = []
    million, ten_millions = WANTED.get(_kernel.capabilities(), ("-", "-"))
    for numel, wanted in (
        (1_000, ["< 1.5 us"]),
        (8_192, ["-"]),
        (100_000, ["-"]),
        (1_000_000, [million]),
        (10_000_000, [ten_millions, "<= 9x"]),
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
    before, *ours = in_turns(calls, rounds=rounds, numel=tensor.numel())
    return [
        Result(f"tt.measure of float32[1,000], {way}", "torch.sum", [before, one], limit)
        for (way, (_, limit)), one in zip(ways.items(), ours, strict=True)
    ]


def many_in_one_call(rounds: int) -> list[Result]:
    """``tt.measure`` of a thousand small tensors together, beside one call for each."""
    tensors = list(torch.randn(1_000, 1_000))
    rows = []
    for histogram in (False, True):
        each = partial(measure_each, tensors, histogram)
        together = partial(tt.measure, tensors, histogram=histogram)
        times = in_turns([each, together], rounds=rounds, numel=1_000_000)
        way = "with histogram" if histogram else "histogram=False"
        name = f"tt.measure of 1,000 x float32[1,000], {way}"
        rows.append(Result(name, "one call each", times, "< 1x"))
    return rows


def measure_each(tensors: Sequence[Tensor], histogram: bool) -> None:
    """One call for each."""
    for tensor in tensors:
        tt.measure(tensor, histogram=histogram)


def other_values(rounds: int) -> list[Result]:
    """Values that make the kernel look twice."""
    relu, shifted, holes = torch.randn(3, 1_000_000)
    relu, shifted = relu.relu(), shifted + 1000
    holes[::1000] = torch.nan
    return [
        against_sum(tensor, rounds, f"float32[1,000,000] {name}", ["-"], 1)[0]
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
            rows += against_sum(source.to(dtype), rounds, name, wanted, 1)
    return rows


def halves_by_bytes(rounds: int) -> list[Result]:
    """Elements of two bytes that are in no cache, beside as many of four."""
    source = torch.randn(10_000_000)
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    calls = [Target().call(source.to(dtype)) for dtype in dtypes]
    full, *halves = in_turns(calls, rounds=rounds, numel=source.numel())
    return [
        Result(f"{str(dtype)[6:]}[10,000,000], statistics", "float32", [full, one], "0.5x")
        for dtype, one in zip(dtypes[1:], halves, strict=True)
    ]


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
    ours, *stock = in_turns([Target().call(tensor), *calls], rounds=rounds, numel=tensor.numel())
    return [
        Result("float32[1,000,000], statistics", way.__name__, [before, ours], "1/10")
        for way, before in zip(ways, stock, strict=True)
    ]


def channels_and_sums(rounds: int) -> list[Result]:
    """Slices of activations apart."""
    rows = []
    for shape in ((512, 64, 1), (20_000, 64, 1), (8, 64, 3136), (8, 512, 49)):
        tensor, table = torch.randn(shape), torch.zeros(shape[1], 16, dtype=torch.float64)

        def measure(tensor: Tensor = tensor, table: Tensor = table) -> None:
            native.accumulate_channels(tensor, table)

        times = in_turns([tensor.sum, measure], rounds=rounds, numel=tensor.numel())
        rows.append(Result(f"float32{list(shape)}, each of dim 1", "torch.sum", times, "-"))
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

        times = in_turns([stock, add], rounds=rounds, numel=tensor.numel())
        rows.append(Result(f"float32{list(shape)}, sum over dim 0", "sum + add_", times, "-"))
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
    older = ["before"] if OLDER else []
    head = ["what", "against", "it takes", "ours", *older, "ratio", "wanted"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines)


def load(path: Path) -> Any:
    """Return another binary of the kernel."""
    spec = importlib.util.spec_from_file_location(_kernel.__name__, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(tables: Mapping[str, Sequence[Result]], command: str) -> str:
    """A table for each instruction set, and what it was measured with."""
    return "\n".join(
        [
            "# What measuring costs",
            "",
            f"`{command}`: one thread, in turns in one run, time that the thread computed,",
            "medians of the rounds; a ratio is the median of those within each round.",
            f"Python {platform.python_version()}, torch {torch.__version__}, "
            f"{platform.system()}, {cpu_model()}, {os.cpu_count()} cores.",
            "",
            f'"Statistics" are {NUM_STATISTICS} and more: number of elements, of finite ones, of',
            "zeros, NaN, Inf, -Inf and subnormals; mean, variance, L1, L2, min and max. Every",
            "sum is kept in float64. Times are of the whole Python call.",
            *(["`before` is an older binary, in the same turns."] if OLDER else []),
            "",
            *(
                line
                for name, rows in tables.items()
                for line in (f"## {name}", "", table(rows), "")
            ),
        ]
    )


MEASURED = (
    float32_by_size,
    one_call,
    many_in_one_call,
    other_values,
    other_dtypes,
    halves_by_bytes,
    channels_and_sums,
    against_stock,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--markdown", type=Path, help="write the table there too")
    parser.add_argument("--force", default="", help="instruction sets: avx512,avx2,baseline")
    parser.add_argument("--before", type=Path, help="an older binary of the kernel")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    OLDER.extend([load(arguments.before)] if arguments.before else [])
    tables: dict[str, list[Result]] = {}
    for name in arguments.force.split(","):
        for kernel in (_kernel, *OLDER):
            kernel.force(name)
        rows = tables.setdefault(_kernel.capabilities(), [])
        for measure in MEASURED:
            rows += measure(arguments.rounds)
            print(f"{_kernel.capabilities()}: {measure.__name__} done", file=sys.stderr)
    command = "python benchmarks/kernel.py"
    command += f" --rounds {arguments.rounds}" if arguments.rounds != 25 else ""
    command += " --before BINARY" if OLDER else ""
    text = page(tables, command + (f" --force {arguments.force}" if arguments.force else ""))
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
