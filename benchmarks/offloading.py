"""Measures offloading beside plain training, ``dd`` and hooks written by hand.

    python benchmarks/offloading.py [--threads 1] [--rounds 25] [--dir DIR] [--markdown FILE]

Both sides of a row run in turns, see ``report.compare``: whole steps by the time of day, since
waits count, and one tensor by what its thread computes, which does all of the work. Bytes in memory
are counted here, through weak references to the memory of all that is packed and fetched, and not
taken from the report.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median

import torch
from report import Result, Step, begin, compare, parser, show
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import torchtap as tt
from torchtap.saved.copy_streams import Ticket, use_streams
from torchtap.saved.spill_file import Extent, SpillFile, folder_for

MIB = 1 << 20
CALLS = 200
Around = Callable[[], AbstractContextManager[object]]


# ---------------------------------------------------------------------- one tensor


def per_tensor(rounds: int, folder: Path) -> list[Result]:
    """Microseconds that one saved tensor costs more, from its saving to its use."""
    rows = []
    with use_streams(Copies()):
        host = tt.offload("cpu", min_bytes=0)
    on_disk = tt.offload("disk", dir=folder, min_bytes=0)
    stays = tt.offload("disk", dir=folder, min_bytes=0, max_bytes=256 * MIB, keep_last=256 * MIB)
    cases: list[tuple[str, int, str, Around, Step | None]] = [
        ("hooks that do nothing, for scale", 64, "-", nothing_hooks, None),
        ("filtered out (small)", 64, "+4 us", opened(tt.offload("disk", dir=folder)), None),
        ("kept by keep_last", 1024, "-", opened(stays), None),
        ("moved to host memory, 4 KiB", 1024, "+10 us", opened(host), copies(1024)),
        ("moved to disk, 4 KiB", 1024, "+10 us", opened(on_disk), transfers(1024, folder)),
        ("moved to disk, 64 KiB", 16384, "+10 us", opened(on_disk), transfers(16384, folder)),
    ]
    for name, numel, wanted, around, alone in cases:
        plain, other = saving(numel, nullcontext), saving(numel, around)
        found = compare(plain, other, rounds=2 * rounds, repeats=1, clock=time.thread_time)
        more = found.more / CALLS * 1e6
        detail = f"plain {found.before / CALLS * 1e6:.2f} us"
        if alone is not None:
            copying = median(thread_seconds(alone) for _ in range(rounds)) / CALLS * 1e6
            detail += f"; +{more:.1f} us in all, of which the bare copies take {copying:.1f} us"
            more -= copying
        rows.append(Result(f"one tensor, {name}", f"{more:+.2f} us", wanted, detail))
    return rows


def thread_seconds(step: Step) -> float:
    """Seconds that the thread computes in one step."""
    start = time.thread_time()
    step()
    return time.thread_time() - start


def saving(numel: int, around: Around) -> Step:
    """Save one tensor in each of many operations, and use all."""
    tensor = torch.ones(numel, requires_grad=True)

    def step() -> None:
        with around():
            outs = [tensor.exp() for _ in range(CALLS)]
        torch.autograd.backward(outs, [tensor.detach()] * CALLS)
        tensor.grad = None

    return step


class Copies:
    """Streams that copy at once, and nothing more: what is left is our own."""

    def serves(self, device: torch.device) -> bool:
        return True

    def out(self, elements: Tensor) -> tuple[Tensor, Ticket]:
        return torch.empty_like(elements).copy_(elements), _DONE

    def back(self, held: Tensor, like: Tensor) -> Ticket:
        like.copy_(held)
        return _DONE

    def drop(self, held: Tensor) -> None:
        pass


class Done:
    """The ticket of a copy that has ended."""

    def is_done(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def join(self) -> None:
        pass


_DONE = Done()


def copies(numel: int) -> Step:
    """Time to copy as many out and back, by itself."""
    sources = [torch.ones(numel) for _ in range(CALLS)]  # As in training, each of its own.

    def step() -> None:
        held = [torch.empty_like(source).copy_(source) for source in sources]
        for one in held:
            torch.empty_like(one).copy_(one)

    return step


def transfers(numel: int, folder: Path) -> Step:
    """Time to write and read as many, by itself."""
    file, sources = SpillFile(folder), [memoryview(bytearray(4 * numel)) for _ in range(CALLS)]

    def step() -> None:
        extents = [file.reserve(4 * numel) for _ in range(CALLS)]
        for extent, source in zip(extents, sources, strict=True):
            file.write(extent, source)
        for extent in extents:
            file.read(extent, memoryview(torch.empty(4 * numel, dtype=torch.uint8).numpy()))
            file.drop(extent)

    return step


def nothing_hooks() -> AbstractContextManager[object]:
    """A pair of hooks that hands everything on."""
    return torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)


# ---------------------------------------------------------------------- the disk


def disk(rounds: int, folder: Path) -> list[Result]:
    """Writing until it is on the disk, and reading from it, beside dd."""
    rows = []
    for size in (1, 4, 64):
        nbytes = size * MIB
        file, data = SpillFile(folder), memoryview(bytearray(os.urandom(nbytes)))
        extent = file.reserve(nbytes)
        source, copy = folder / f"{uuid.uuid4()}", folder / f"{uuid.uuid4()}"
        source.write_bytes(data)
        best = [0.0] * 4
        for _ in range(rounds):
            seconds = [dd(source, copy, nbytes, "conv=fsync"), timed(written, file, extent, data)]
            forget(copy)
            file.forget()
            seconds += [dd(copy, Path(os.devnull), nbytes), timed(file.read, extent, data)]
            best = [max(one, nbytes / two) for one, two in zip(best, seconds, strict=True)]
        source.unlink()
        copy.unlink()
        for name, theirs, ours in (("write + sync", *best[:2]), ("fetch", *best[2:])):
            detail = f"dd {theirs / MIB:.0f} MiB/s, spill file {ours / MIB:.0f} MiB/s"
            what = f"disk, {name}, {size} MiB, speed to dd"
            rows.append(Result(what, f"{ours / theirs:.2f}x", ">= 0.8", detail))
    return rows


def dd(source: Path, target: Path, nbytes: int, *words: str) -> float:
    """Seconds, as dd says them."""
    block = min(nbytes, 4 * MIB)
    command = ["dd", f"if={source}", f"of={target}", f"bs={block}", *words]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    match = re.search(r"copied, ([\d.e-]+) s", said)
    assert match, said
    return float(match[1])


def forget(path: Path) -> None:
    """Drop what the system keeps of a file in memory."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def written(file: SpillFile, extent: Extent, data: memoryview) -> None:
    """Write until it is on the disk."""
    file.write(extent, data)
    file.sync()


def timed(call: Callable[..., object], *args: object) -> float:
    """Seconds."""
    start = time.perf_counter()
    call(*args)
    return time.perf_counter() - start


# ---------------------------------------------------------------------- a ResNet-152


class Bottleneck(nn.Module):
    """Narrow, convolve, widen by four; a residual."""

    def __init__(self, num_in: int, width: int, stride: int) -> None:
        super().__init__()
        num_out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(num_in, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, num_out, 1, bias=False), nn.BatchNorm2d(num_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential()
        if stride != 1 or num_in != num_out:
            conv = nn.Conv2d(num_in, num_out, 1, stride, bias=False)
            self.downsample.extend([conv, nn.BatchNorm2d(num_out)])

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += self.downsample(x)
        return self.relu(out)


def resnet152() -> nn.Module:
    """50 bottlenecks, as in torchvision."""
    parts: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    num_in = 64
    for stage, num_blocks in enumerate((3, 8, 36, 3)):
        width = 64 << stage
        for block in range(num_blocks):
            parts.append(Bottleneck(num_in, width, 2 if stage and not block else 1))
            num_in = 4 * width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(num_in, 1000))


class Counter:
    """Counts memory that is packed or fetched and still lives, parameters aside."""

    def __init__(self, model: nn.Module) -> None:
        self.peak = 0
        self._params = {param.untyped_storage()._cdata for param in model.parameters()}
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes now."""
        seen = list(self._seen.items())  # Threads that fetch note tensors meanwhile.
        for key, (storage, _) in seen:
            if storage.expired():
                self._seen.pop(key, None)
        return sum(nbytes for _, nbytes in list(self._seen.values()))

    def note(self, tensor: Tensor) -> Tensor:
        """Count the memory of a tensor for as long as it lives."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._params:
            self._seen[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, self.nbytes)
        return tensor

    def listen(self, off: tt.Offload) -> None:
        """Hear what an offload packs and what it fetches, also ahead."""
        pack, unpack = off._scope.pair
        off._scope.pair = (lambda tensor: pack(self.note(tensor)), unpack)
        for tier in off._engine.chain.tiers:
            tier.get = self._noting(tier.get)

    def _noting(self, get: Callable[..., tuple[Tensor, object]]) -> Callable[..., object]:
        def noted(*args: object) -> tuple[Tensor, object]:
            elements, ticket = get(*args)
            return self.note(elements), ticket

        return noted


@contextmanager
def one_file_per_tensor(folder: Path) -> Iterator[None]:
    """Hooks of PyTorch's tutorial on saved tensors: torch.save, torch.load, a file each."""

    class File:
        def __init__(self, tensor: Tensor) -> None:
            self.path = folder / f"{uuid.uuid4()}"
            torch.save(tensor, self.path)

        def __del__(self) -> None:
            self.path.unlink()

    with torch.autograd.graph.saved_tensors_hooks(File, lambda file: torch.load(file.path)):
        yield


def deep(rounds: int, folder: Path) -> list[Result]:
    """ResNet-152, batch 8 of 64 px: what is in memory, and how long a step takes."""
    model, batch = resnet152(), torch.randn(8, 3, 64, 64)
    target = torch.randint(1000, (8,))

    def loss() -> Tensor:
        return nn.functional.cross_entropy(model(batch), target)

    def step(around: Around) -> Step:
        def run() -> None:
            with around():
                found = loss()
            found.backward()
            model.zero_grad()

        return run

    def counted(**options: object) -> tuple[int, int, tt.Offload]:
        """Bytes after the forward, and their peak over two steps."""
        counter = Counter(model)
        off = tt.offload("disk", dir=folder, **options)
        counter.listen(off)
        with off:
            found = loss()
        off.flush()
        nbytes = counter.nbytes
        found.backward()
        step(lambda: off)()
        model.zero_grad()
        return nbytes, counter.peak, off

    plain, plain_peak, _ = counted(min_bytes=1 << 62)
    rows = []
    nbytes, _, _ = counted()
    rows.append(in_memory("to disk, in memory after the forward", nbytes, plain, "12 %"))
    nbytes, _, _ = counted(min_bytes=0)
    rows.append(in_memory("the same, min_bytes=0", nbytes, plain, "12 %"))
    _, peak, off = counted(max_bytes=64 * MIB)
    row = in_memory("max_bytes=64 MiB, peak", peak, plain_peak, "64 MiB")
    said = f"{row.detail}; the report says {off.report().peak_nbytes / MIB:.1f} MiB"
    rows.append(Result(row.what, f"{peak / MIB:.1f} MiB", row.wanted, said))
    with tempfile.TemporaryDirectory(dir=folder) as files:
        bounded = tt.offload("disk", dir=folder, max_bytes=64 * MIB)
        ways: list[tuple[str, Around]] = [
            ("tt.offload, to disk", opened(tt.offload("disk", dir=folder))),
            ("the same, max_bytes=64 MiB", opened(bounded)),
            ("torch.autograd.graph.save_on_cpu", torch.autograd.graph.save_on_cpu),
            ("one file per tensor", lambda: one_file_per_tensor(Path(files))),
        ]
        for name, around in ways:
            sides = step(nullcontext), step(around)
            found = compare(*sides, rounds=rounds, repeats=1, clock=time.perf_counter)
            rows.append(found.result(f"step time, {name}", "-"))
    return [Result(f"ResNet-152: {r.what}", r.measured, r.wanted, r.detail) for r in rows]


def opened(off: tt.Offload) -> Around:
    """Enter the same one each time."""
    return lambda: off


def in_memory(what: str, nbytes: int, plain: int, wanted: str) -> Result:
    """A share of what plain training holds."""
    detail = f"{nbytes / MIB:.1f} MiB of {plain / MIB:.1f} MiB"
    return Result(what, f"{nbytes / plain:.1%}", wanted, detail)


# ---------------------------------------------------------------------- the whole process


_STEPS = """
import sys, time, torch, torchtap as tt
from torch import nn

torch.set_num_threads(int(sys.argv[2]))
model = nn.Sequential(*(one for _ in range(24) for one in (nn.Linear(512, 512), nn.GELU())))
limits = {"disk": None, "budget": 64 << 20}
off = tt.offload("disk", model=model, max_bytes=limits[sys.argv[1]]) if sys.argv[1] in limits else 0

def anonymous():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

before, most, fastest = anonymous(), 0, float("inf")
for _ in range(6):
    start = time.perf_counter()
    loss = model(torch.randn(2048, 512)).sum()
    most = max(most, anonymous())
    loss.backward()
    fastest = min(fastest, time.perf_counter() - start)
    most = max(most, anonymous())
    model.zero_grad()
print(most - before, fastest)
"""


def process(threads: int) -> list[Result]:
    """Anonymous memory that a training adds to its process, as the system counts it, in KiB."""
    found: dict[str, tuple[float, float]] = {}
    for how in ("plain", "disk", "budget") * 2:
        command = [sys.executable, "-c", _STEPS, how, str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        size, seconds = map(float, done.stdout.split())
        size, seconds = min((size, seconds), found.get(how, (size, seconds)))
        found[how] = size, seconds
    plain, seconds = found["plain"]
    names = {"disk": "to disk", "budget": "max_bytes=64 MiB"}
    return [
        Result(
            f"24 x Linear(512) + GELU, whole process, {name}",
            f"{found[how][0] / plain:.2f}x",
            "-",
            f"{plain / 1024:.0f} MiB -> {found[how][0] / 1024:.0f} MiB, in "
            f"{found[how][1] / seconds:.2f}x of the time",
        )
        for how, name in names.items()
    ]


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--dir", type=Path)
    options = begin(flags)
    folder = folder_for(options.dir, allow_memory=False)
    rows = [
        *per_tensor(options.rounds, folder),
        *disk(max(options.rounds // 2, 3), folder),
        *process(options.threads),
        *deep(max(options.rounds // 8, 2), folder),
    ]
    how = (
        "Medians of the ratios of both sides, run in turns. Bytes are counted through "
        "weak references, not taken from the report; those of a whole process by the system."
    )
    show(rows, options, "What offloading costs", __file__, how)


if __name__ == "__main__":
    main()
