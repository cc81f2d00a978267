"""Measures a run on disk: written beside a training, read again, opened; and other ways to do it.

    python benchmarks/store.py [--folder DIR] [--rounds 5] [--markdown FILE]

Each figure is a ratio to the same work without torchtap, done in turns on the same file system:
one large write of the same bytes, a copy out of a mapped file, ``dd``, numpy's memmap. zarr and
h5py are measured where they are installed.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

import torchtap as tt

sys.path.insert(0, str(Path(__file__).parent))
from report import Result, begin, parser, table

from torchtap.core.record import FORWARD, UNVERSIONED, Record, new_record

NUM_TENSORS, STEP_BYTES, NUM_STEPS = 100, 150_000_000, 6
ROWS = 16
"""Bytes of each tensor."""
HOW = (
    f"Steps of {STEP_BYTES / 1e6:.0f} MB in {NUM_TENSORS} tensors. Sides take turns, a different "
    "one first in each round; given is the median of the ratios to the plain side of that round. "
    "The control is the plain side once more, to itself: it says how far to trust the row. "
    "Seconds are of the wall clock, CPU those of all threads of the process."
)
PROFILE = "## Where the time goes"
"""The part of the page that is written by hand; it stays when the tables are made again."""


class Timed(NamedTuple):
    """Seconds that passed, and that all threads of the process computed."""

    seconds: float
    cpu: float


class Clock:
    """Measures what happens inside of ``with``."""

    def __enter__(self) -> Clock:
        self._start = Timed(time.perf_counter(), time.process_time())
        return self

    def __exit__(self, *_: object) -> None:
        start = self._start
        self.timed = Timed(time.perf_counter() - start.seconds, time.process_time() - start.cpu)


Side = Callable[[], Timed]


def in_turns(sides: dict[str, Side], rounds: int) -> dict[str, list[Timed]]:
    """Times of each side, after one round that does not count."""
    found: dict[str, list[Timed]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds + 1):
        for turn in range(len(names)):
            name = names[(number + turn) % len(names)]
            gc.collect()
            timed = sides[name]()
            if number:
                found[name].append(timed)
    return found


def ratio(
    found: dict[str, list[Timed]], name: str, to: str = "plain", *, cpu: bool = False
) -> float:
    """The median of the ratios to another side in the same round."""
    which = int(cpu)
    pairs = zip(found[name], found[to], strict=True)
    return median(one[which] / other[which] for one, other in pairs)


def detail(found: dict[str, list[Timed]], name: str, *, cpu: bool = False) -> str:
    """Milliseconds of both sides, and the control."""
    plain, other = (median(one[int(cpu)] for one in found[side]) for side in ("plain", name))
    control = ratio(found, "again", cpu=cpu)
    return f"{plain * 1e3:.1f} ms -> {other * 1e3:.1f} ms, control {control:.2f}x"


def timed(action: Callable[[], object]) -> Side:
    """A side that is the whole of a function."""

    def side() -> Timed:
        with Clock() as clock:
            action()
        return clock.timed

    return side


# ---------------------------------------------------------------------- written


def values() -> list[Tensor]:
    """The values of a step."""
    size = STEP_BYTES // NUM_TENSORS // 4 // ROWS
    return [torch.randn(ROWS, size) for _ in range(NUM_TENSORS)]


def records(step: int, kept: list[Tensor]) -> list[Record]:
    """A step as a watch would hand it over."""
    sites = [tt.Site(f"blocks.{number}.attn") for number in range(len(kept))]
    row = (step, 0, FORWARD, -1, ())
    return [
        new_record(Record, (site, *row, one, UNVERSIONED))
        for site, one in zip(sites, kept, strict=True)
    ]


def append(disk: tt.Disk, step: int, kept: list[Tensor]) -> None:
    """One step."""
    for record in records(step, kept):
        disk.take(record)
    disk.close_step(step)


class Writing:
    """Sides that write the same bytes.

    Args:
        folder: where.
        kept: the values of a step.
        durability: of all sides.
    """

    def __init__(self, folder: Path, kept: list[Tensor], durability: str) -> None:
        self._folder, self._kept, self._durability = folder, kept, durability
        self._whole = torch.cat([one.flatten() for one in kept])
        self._copy = torch.empty_like(self._whole).fill_(0)

    def plain(self, *, is_copied: bool = False) -> Timed:
        """One large write per step, of memory that is its own or copied before."""
        path = self._folder / "raw"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        nbytes = self._whole.nbytes
        with Clock() as clock:
            for step in range(NUM_STEPS):
                if is_copied:
                    self._copy.copy_(self._whole)
                source = self._copy if is_copied else self._whole
                os.pwrite(file, source.numpy(), step * nbytes)
                if self._durability == "step":
                    os.fdatasync(file)
        os.close(file)
        path.unlink()
        return clock.timed

    def copied(self) -> Timed:
        """The least that a training which goes on has to do: a copy, and the write."""
        return self.plain(is_copied=True)

    def disk(self) -> Timed:
        """Through ``tt.Disk``, from the third step on, when its buffers are there."""
        path = self._folder / "run"
        disk = tt.Disk(path, durability=self._durability)  # type: ignore[arg-type]
        for step in range(2):
            append(disk, step, self._kept)
        disk.contents()  # Waits until all is written.
        with Clock() as clock:
            for step in range(2, 2 + NUM_STEPS):
                append(disk, step, self._kept)
            disk.contents()
        disk.close()
        shutil.rmtree(path)
        return clock.timed

    def results(self, rounds: int) -> list[Result]:
        """Speed and CPU."""
        sides = {
            "plain": self.plain,
            "disk": self.disk,
            "again": self.plain,
            "copied": self.copied,
        }
        found = in_turns(sides, rounds)
        name = f"durability={self._durability!r}"
        gigabytes = NUM_STEPS * STEP_BYTES / median(one.seconds for one in found["plain"]) / 1e9
        speed = f"{1 / ratio(found, 'disk'):.2f}x"
        more = f"{detail(found, 'disk')}, plain {gigabytes:.2f} GB/s"
        cpu = f"{ratio(found, 'disk', 'copied', cpu=True):.2f}x"
        to_write = f"{ratio(found, 'disk', cpu=True):.2f}x of the write alone"
        return [
            Result(f"speed of appending, {name}, to one large write", speed, "0.9x at least", more),
            Result(f"CPU of it, {name}, to a copy and that write", cpu, "1.2x", to_write),
        ]


def stall(folder: Path, kept: list[Tensor]) -> Result:
    """Share of a step by which a training that leaves the disk time is held up."""
    disk = tt.Disk(folder / "stall", durability="none")
    held, computed, queued, whole = 0.0, 0.0, 0.0, 0.0
    for step in range(10):
        rows = records(step, kept)
        start, cpu, waited = time.perf_counter(), time.thread_time(), _waited_for_a_core()
        for record in rows:
            disk.take(record)
        disk.close_step(step)
        middle, cpu = time.perf_counter(), time.thread_time() - cpu
        waited = _waited_for_a_core() - waited
        time.sleep(1.0)  # A training whose own work takes a second.
        if step > 1:  # The first ones make the buffers.
            held, computed, queued = held + middle - start, computed + cpu, queued + waited
            whole += time.perf_counter() - start
    disk.close()
    shutil.rmtree(folder / "stall")
    more = (
        f"computing (the copy) {computed / whole:.1%}, waiting for a core {queued / whole:.1%}, "
        f"for anything else {(held - computed - queued) / whole:.1%}"
    )
    return Result("a step of one second held up by", f"{held / whole:.1%}", "5 %", more)


def _waited_for_a_core() -> float:
    """Seconds that this thread was ready to run and other threads had all cores."""
    path = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    return int(path.read_text().split()[1]) / 1e9 if path.exists() else 0.0


def peak_memory(folder: Path, kept: list[Tensor], queue_bytes: int) -> Result:
    """Most bytes that the process holds more, while the queue is full."""
    highest, done = 0, threading.Event()
    before = _resident()

    def look() -> None:
        nonlocal highest
        while not done.wait(0.005):
            highest = max(highest, _resident())

    watcher = threading.Thread(target=look)
    watcher.start()
    disk = tt.Disk(folder / "memory", durability="none", queue_bytes=queue_bytes)
    for step in range(6):
        append(disk, step, kept)
    disk.close()
    done.set()
    watcher.join()
    shutil.rmtree(folder / "memory")
    more, queue = (highest - before) / 2**20, queue_bytes >> 20
    return Result(f"memory, queue of {queue} MiB", f"{more:.0f} MiB", f"{queue + 64} MiB", "")


def _resident() -> int:
    words = Path("/proc/self/statm").read_text().split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE")


# ---------------------------------------------------------------------- read


def copy_records(run: tt.Run, target: Tensor, **which: Any) -> None:
    """Every value once, one behind the other."""
    start = 0
    for record in run.records(**which):
        flat = record.value.reshape(-1)
        target[start : start + flat.numel()].copy_(flat)
        start += flat.numel()


def reading(folder: Path, kept: list[Tensor], rounds: int) -> list[Result]:
    """One site and one step of a run that is in the page cache, and a site that is not."""
    many, one = folder / "many", folder / "one"
    for path, part, steps in ((many, kept, 6), (one, kept[:1], NUM_TENSORS)):
        disk = tt.Disk(path, durability="close")
        for step in range(steps):
            append(disk, step, part)
        disk.close()
    plain = folder / "plain.bin"
    torch.cat([value.flatten() for value in kept]).numpy().tofile(plain)
    target = torch.empty(plain.stat().st_size // 4).fill_(0)

    def memcpy() -> None:
        target.copy_(torch.from_numpy(np.memmap(plain, np.float32, "c")))

    def side(path: Path, *, verify: bool, **which: Any) -> Side:
        def read() -> Timed:
            run = tt.open(path, verify=verify)
            return timed(lambda: copy_records(run, target, **which))()

        return read

    rows = []
    for what, path, which in (
        ("one site over all steps", one, {"where": "blocks.0.attn"}),
        ("one step over all sites", many, {"steps": 3}),
    ):
        again = tt.open(path)
        sides = {
            "plain": timed(memcpy),
            "checked": side(path, verify=True, **which),
            "unchecked": side(path, verify=False, **which),
            "again": timed(memcpy),
            "second": timed(lambda run=again, which=which: copy_records(run, target, **which)),  # type: ignore[misc]
        }
        found = in_turns(sides, rounds)
        for name, said in (
            ("unchecked", "verify=False"),
            ("checked", "checked"),
            ("second", "read again"),
        ):
            rows.append(
                Result(
                    f"{what}, {said}, to a copy out of a mapped file",
                    f"{ratio(found, name):.2f}x",
                    "1.1x",
                    f"{detail(found, name)}; CPU {ratio(found, name, cpu=True):.2f}x",
                )
            )
    rows.append(cold(one, target, rounds))
    return rows


def cold(path: Path, target: Tensor, rounds: int) -> Result:
    """One site whose pages are not in memory, to ``dd``."""
    (lane,) = path.rglob("lanes/*")

    def dropped(action: Callable[[], object]) -> Side:
        def side() -> Timed:
            file = os.open(lane, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)
            return timed(action)()

        return side

    def dd() -> None:
        command = ["dd", f"if={lane}", "of=/dev/null", "bs=4M"]
        subprocess.run(command, check=True, capture_output=True)

    sides = {
        "plain": dropped(dd),
        "site": dropped(lambda: copy_records(tt.open(path), target, where="blocks.0.attn")),
        "again": dropped(dd),
    }
    found = in_turns(sides, rounds)
    speed = f"{1 / ratio(found, 'site'):.2f}x"
    what = "speed of one site, cold, opened and checked, to dd"
    return Result(what, speed, "0.8x at least", detail(found, "site"))


def rows_and_epochs(folder: Path, rounds: int) -> list[Result]:
    """Random rows, and a shuffled epoch through a loader."""
    layer = torch.nn.Identity()
    with tt.watch(layer, to=tt.Disk(folder / "rows", durability="none")) as w:
        for _ in range(50):
            layer(torch.randn(1024, 768))
            w.step()
    run, site = tt.open(folder / "rows"), ".:output"
    run.cat(site)  # Checks all values; later reads do not.
    (lane,) = (folder / "rows").rglob("lanes/*")
    mapped = np.memmap(lane, np.float32, "r", 4096, (51_200, 768))
    chosen = np.random.default_rng(0).integers(0, len(mapped), 10_000)
    sides = {
        "plain": timed(lambda: mapped[chosen]),
        "rows": timed(lambda: run.rows(site, chosen)),
        "again": timed(lambda: mapped[chosen]),
    }
    gathered = in_turns(sides, 5 * rounds)
    data = run.dataset(site)

    def epoch(sampler: Any) -> None:
        batches = BatchSampler(sampler, 256, drop_last=False)
        for _ in DataLoader(data, sampler=batches, batch_size=None):
            pass

    in_order = timed(lambda: epoch(SequentialSampler(data)))
    sides = {
        "plain": in_order,
        "shuffled": timed(lambda: epoch(RandomSampler(data))),
        "again": in_order,
    }
    found = in_turns(sides, 3 * rounds)
    return [
        Result(
            "10,000 random rows, to numpy's memmap",
            f"{ratio(gathered, 'rows'):.2f}x",
            "2x",
            detail(gathered, "rows"),
        ),
        Result(
            "a shuffled epoch of 51,200 rows, to one in order",
            f"{ratio(found, 'shuffled'):.2f}x",
            "1.5x",
            detail(found, "shuffled"),
        ),
    ]


def statistics(folder: Path) -> list[Result]:
    """300 sites and 1,000 steps of statistics alone."""
    layers = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(300)])
    value = torch.randn(256)
    sinks = [tt.Disk(folder / "stats", values=None, durability="none"), tt.Stats()]
    given: list[float] = []
    with tt.watch(layers, "?*", to=sinks) as w:
        cpu = time.process_time() - time.thread_time()
        for step in range(1, 1001):
            layers(value)
            start = time.perf_counter()
            w.step()
            if step % 50 == 0:
                given.append(time.perf_counter() - start)
        beside = (time.process_time() - time.thread_time() - cpu) / 20
        closing = time.perf_counter()
    closing = time.perf_counter() - closing
    opening = time.perf_counter()
    run = tt.open(folder / "stats")
    run.over_steps("7:output", "l2")
    opening = time.perf_counter() - opening
    by_thread = f"and {beside * 1e3:.0f} ms of CPU in the thread that writes"
    handed = f"{median(given) * 1e3:.0f} ms"
    return [
        Result("statistics of 300 sites, 50 steps handed over", handed, "30 ms", by_thread),
        Result("closed after 1,000 steps", f"{closing:.2f} s", "-", ""),
        Result("opened, one site over all steps", f"{opening:.2f} s", "0.3 s", ""),
    ]


# ---------------------------------------------------------------------- other ways


class Way(NamedTuple):
    """Another way to keep values.

    Attributes:
        name: of it.
        write: all steps, given a folder and the values of a step.
        site: reads the values of site 3 of all steps.
        step: reads the values of all sites of step 3.
    """

    name: str
    write: Callable[[Path, list[Tensor]], None]
    site: Callable[[Path], object]
    step: Callable[[Path], object]


def tap_write(home: Path, kept: list[Tensor]) -> None:
    disk = tt.Disk(home / "run", durability="none")
    for step in range(NUM_STEPS):
        append(disk, step, kept)
    disk.close()


def tap_read(home: Path, **which: Any) -> None:
    for record in tt.open(home / "run").records(**which):
        record.value.clone()


def pickled_write(home: Path, kept: list[Tensor]) -> None:
    for step in range(NUM_STEPS):
        torch.save(kept, home / f"{step}.pt")


def npy_write(home: Path, kept: list[Tensor]) -> None:
    """One file per site, of which the header says what will be there in the end."""
    for step in range(NUM_STEPS):
        for number, one in enumerate(kept):
            with (home / f"{number}.npy").open("ab") as file:
                if step == 0:
                    shape = (NUM_STEPS * ROWS, one.shape[1])
                    facts = {"shape": shape, "fortran_order": False, "descr": "<f4"}
                    np.lib.format.write_array_header_1_0(file, facts)
                file.write(one.numpy())


def npy_rows(home: Path, number: int, rows: slice) -> object:
    return np.array(np.load(home / f"{number}.npy", mmap_mode="r")[rows])


def hdf5_write(home: Path, kept: list[Tensor]) -> None:
    h5py: Any = importlib.import_module("h5py")
    with h5py.File(home / "run.h5", "w") as file:
        for step in range(NUM_STEPS):
            for number, one in enumerate(kept):
                if step == 0:
                    dims = {"shape": (0, one.shape[1]), "maxshape": (None, one.shape[1])}
                    file.create_dataset(str(number), **dims, chunks=tuple(one.shape), dtype="f4")
                data = file[str(number)]
                data.resize(len(data) + len(one), axis=0)
                data[-len(one) :] = one.numpy()
            file.flush()


def hdf5_rows(home: Path, numbers: range, rows: slice) -> object:
    h5py: Any = importlib.import_module("h5py")
    with h5py.File(home / "run.h5", "r") as file:
        return [file[str(number)][rows] for number in numbers]


def zarr_write(home: Path, kept: list[Tensor]) -> None:
    zarr: Any = importlib.import_module("zarr")
    group = zarr.open_group(home / "run.zarr", mode="w")
    for step in range(NUM_STEPS):
        for number, one in enumerate(kept):
            if step == 0:
                dims = {"shape": (0, one.shape[1]), "chunks": tuple(one.shape)}
                group.create_array(str(number), **dims, dtype="f4", compressors=None)
            group[str(number)].append(one.numpy())


def zarr_rows(home: Path, numbers: range, rows: slice) -> object:
    zarr: Any = importlib.import_module("zarr")
    group = zarr.open_group(home / "run.zarr", mode="r")
    return [group[str(number)][rows] for number in numbers]


def ways() -> Iterator[Way]:
    """The ways that are installed."""
    every, third, whole = range(NUM_TENSORS), slice(3 * ROWS, 4 * ROWS), slice(None)
    yield Way(
        "tt.Disk",
        tap_write,
        lambda home: tap_read(home, where="blocks.3.attn"),
        lambda home: tap_read(home, steps=3),
    )
    yield Way(
        "torch.save per step",
        pickled_write,
        lambda home: [torch.load(home / f"{step}.pt")[3] for step in range(NUM_STEPS)],
        lambda home: torch.load(home / "3.pt"),
    )
    yield Way(
        "one npy per site",
        npy_write,
        lambda home: npy_rows(home, 3, whole),
        lambda home: [npy_rows(home, number, third) for number in every],
    )
    for module, name, write, rows in (
        ("h5py", "HDF5 (h5py)", hdf5_write, hdf5_rows),
        ("zarr", "zarr", zarr_write, zarr_rows),
    ):
        if importlib.util.find_spec(module) is None:
            print(f"{module} is not installed, and not measured: pip install {module}")
            continue
        yield Way(
            f"{name} {importlib.metadata.version(module)}",
            write,
            lambda home, rows=rows: rows(home, range(3, 4), whole),  # type: ignore[misc]
            lambda home, rows=rows: rows(home, every, third),  # type: ignore[misc]
        )


def side_by_side(folder: Path, kept: list[Tensor], rounds: int) -> str:
    """All ways in one table, as ratios to ``tt.Disk`` in the same round."""
    found: dict[str, list[list[float]]] = {}
    files: dict[str, int] = {}
    installed = list(ways())
    for number in range(rounds + 1):
        for turn in range(len(installed)):
            way = installed[(number + turn) % len(installed)]
            home = folder / "way"
            home.mkdir()
            with Clock() as written:
                way.write(home, kept)
            with Clock() as site:
                way.site(home)
            with Clock() as step:
                way.step(home)
            files[way.name] = sum(one.is_file() for one in home.rglob("*"))
            shutil.rmtree(home)
            times = [written.timed.seconds, written.timed.cpu]
            times += [site.timed.seconds, step.timed.seconds]
            if number:
                found.setdefault(way.name, []).append(times)
    lines = [
        f"| {NUM_STEPS} steps, no sync | written | CPU of it | one site read | one step read "
        "| files |",
        "|---|---|---|---|---|---|",
    ]
    for name in (way.name for way in installed):
        all_times = found[name]
        pairs = list(zip(all_times, found[installed[0].name], strict=True))
        ratios = [median(one[at] / other[at] for one, other in pairs) for at in range(4)]
        seconds = [median(one[at] for one in all_times) for at in range(4)]
        cells = [f"{r:.1f}x ({s * 1e3:.0f} ms)" for r, s in zip(ratios, seconds, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} | {files[name]} |")
    return "\n".join(lines)


# ---------------------------------------------------------------------- all


def options_of() -> argparse.ArgumentParser:
    found = parser(__doc__ or "")
    found.set_defaults(rounds=5)
    found.add_argument("--folder", type=Path, help="on the file system that is to be measured")
    return found


@contextmanager
def workplace(where: Path | None) -> Iterator[Path]:
    """A folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(dir=where))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Print both tables."""
    options = begin(options_of())
    kept, rows = values(), list[Result]()
    with workplace(options.folder) as folder:
        rows.append(peak_memory(folder, kept, 64 << 20))  # First: the heap is small still.
        for durability in ("none", "step"):
            rows += Writing(folder, kept, durability).results(options.rounds)
        rows.append(stall(folder, kept))
        rows += reading(folder, kept, options.rounds)
        rows += rows_and_epochs(folder, options.rounds)
        rows += statistics(folder)
        print(text := table(rows), end="\n\n")
        print(others := side_by_side(folder, kept, max(1, options.rounds // 2)))
    if options.markdown:
        before = options.markdown.read_text() if options.markdown.exists() else ""
        profile = before[before.find(PROFILE) :] if PROFILE in before else ""
        versions = f"torch {torch.__version__}, numpy {np.__version__}, Python"
        options.markdown.write_text(
            f"# What a run on disk costs\n\n"
            f"`python benchmarks/store.py --rounds {options.rounds}`: {versions} "
            f"{platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, "
            f"{options.threads} thread(s), torchtap {tt.__version__}.\n\n{HOW}\n\n{text}\n\n"
            f"The same bytes in other ways, to `tt.Disk` in the same round, "
            f"page cache only:\n\n{others}\n" + ("\n" + profile if profile else "")
        )


if __name__ == "__main__":
    main()
