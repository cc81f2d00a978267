"""What a run on disk costs: written beside a training, read again, opened.

    python benchmarks/store.py [--folder DIR] [--rounds 5] [--markdown FILE]

Each figure is a ratio to the same work without torchtap, done in turns on the same file system:
one large write of the same bytes, a memcpy from the page cache, numpy's memmap.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

import torchtap as tt

sys.path.insert(0, str(Path(__file__).parent))
from report import Result, begin, parser, show

from torchtap.core.record import FORWARD, UNVERSIONED, Record, new_record

NUM_TENSORS, STEP_BYTES, NUM_STEPS = 100, 150_000_000, 8
HOW = (
    f"{NUM_STEPS} steps of {STEP_BYTES / 1e6:.0f} MB in {NUM_TENSORS} tensors, all in the page "
    "cache (durability 'none'). Ratios are medians over rounds in which the sides take turns."
)


def values() -> list[Tensor]:
    """The values of a step."""
    size = STEP_BYTES // NUM_TENSORS // 4 // 16
    return [torch.randn(16, size) for _ in range(NUM_TENSORS)]


def records(step: int, kept: list[Tensor]) -> list[Record]:
    """A step as a watch would hand it over."""
    sites = [tt.Site(f"blocks.{number}.attn") for number in range(len(kept))]
    row = (step, 0, FORWARD, -1, ())
    return [
        new_record(Record, (site, *row, one, UNVERSIONED))
        for site, one in zip(sites, kept, strict=True)
    ]


class Timed:
    """Seconds that passed, and that all threads of the process computed."""

    def __enter__(self) -> Timed:
        self.seconds, self.cpu = -time.perf_counter(), -time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        self.cpu += time.process_time()


# ---------------------------------------------------------------------- written


def write_raw(folder: Path, kept: list[Tensor]) -> Timed:
    """One large write per step."""
    whole = torch.cat([one.flatten() for one in kept]).numpy()
    with Timed() as timed:
        file = os.open(folder / "raw", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for step in range(NUM_STEPS):
            os.pwrite(file, whole, step * whole.nbytes)
        os.close(file)
    (folder / "raw").unlink()
    return timed


def write_disk(folder: Path, kept: list[Tensor]) -> Timed:
    """The same values through ``tt.Disk``."""
    disk = tt.Disk(folder / "run", durability="none")
    with Timed() as timed:
        for step in range(NUM_STEPS):
            for record in records(step, kept):
                disk.take(record)
            disk.close_step(step)
        disk.close()
    return timed


def stall(folder: Path, kept: list[Tensor]) -> float:
    """Share of a step by which a training that leaves the disk time is held up."""
    disk = tt.Disk(folder / "stall", durability="none")
    lost, whole = 0.0, 0.0
    for step in range(NUM_STEPS):
        start = time.perf_counter()
        for record in records(step, kept):
            disk.take(record)
        disk.close_step(step)
        middle = time.perf_counter()
        time.sleep(1.0)  # A training whose own work takes a second.
        if step:  # The first one makes the buffers.
            lost += middle - start
            whole += time.perf_counter() - start
    disk.close()
    shutil.rmtree(folder / "stall")
    return lost / whole


def peak_memory(folder: Path, kept: list[Tensor], queue_bytes: int) -> float:
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
    for step in range(NUM_STEPS):
        for record in records(step, kept):
            disk.take(record)
        disk.close_step(step)
    disk.close()
    done.set()
    watcher.join()
    shutil.rmtree(folder / "memory")
    return highest - before


def _resident() -> int:
    words = Path("/proc/self/statm").read_text().split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE")


# ---------------------------------------------------------------------- others


def others(folder: Path, kept: list[Tensor]) -> dict[str, float]:
    """Seconds that other ways take for the same values; those that are installed."""
    ways: dict[str, Callable[[Path, int, list[Tensor]], None]] = {
        "torch.save per step": _torch_save,
        "one npy per site and step": _npy,
    }
    for module, name, way in (("h5py", "HDF5", _hdf5), ("zarr", "zarr", _zarr)):
        if importlib.util.find_spec(module) is not None:
            ways[name] = way
    found = {}
    for name, way in ways.items():
        home = folder / "other"
        home.mkdir()
        with Timed() as timed:
            for step in range(NUM_STEPS):
                way(home, step, kept)
        shutil.rmtree(home)
        found[name] = timed.seconds
    return found


def _torch_save(home: Path, step: int, kept: list[Tensor]) -> None:
    torch.save(kept, home / f"{step}.pt")


def _npy(home: Path, step: int, kept: list[Tensor]) -> None:
    for number, one in enumerate(kept):
        np.save(home / f"{number}.{step}.npy", one.numpy())


def _hdf5(home: Path, step: int, kept: list[Tensor]) -> None:
    h5py: Any = importlib.import_module("h5py")
    with h5py.File(home / "run.h5", "a") as file:
        for number, one in enumerate(kept):
            if step == 0:
                shape = (0, *one.shape[1:])
                file.create_dataset(str(number), shape, maxshape=(None, *one.shape[1:]), dtype="f4")
            data = file[str(number)]
            data.resize(len(data) + len(one), axis=0)
            data[-len(one) :] = one.numpy()


def _zarr(home: Path, step: int, kept: list[Tensor]) -> None:
    zarr: Any = importlib.import_module("zarr")
    group = zarr.open_group(home / "run.zarr", mode="a")
    for number, one in enumerate(kept):
        if step == 0:
            shape = (0, *one.shape[1:])
            group.create_array(str(number), shape=shape, chunks=tuple(one.shape), dtype="f4")
        group[str(number)].append(one.numpy())


# ---------------------------------------------------------------------- read


def ratio(plain: Callable[[], object], other: Callable[[], object], rounds: int) -> float:
    """Median of the ratios of times, after one turn of each that is not counted."""
    plain(), other()
    found = []
    for _ in range(rounds):
        with Timed() as one:
            plain()
        with Timed() as two:
            other()
        found.append(two.seconds / one.seconds)
    return median(found)


def reading(folder: Path, rounds: int) -> list[Result]:
    """One site, one step, random rows, and epochs of a run that is in the page cache."""
    run = tt.open(folder / "run")
    site = "blocks.3.attn"
    whole = torch.cat([one.value for one in run.records(site)])
    target = torch.empty_like(whole)
    step = [one.value for one in run.records(steps=3)]
    flat = torch.cat([one.flatten() for one in step])
    flat_target = torch.empty_like(flat)
    lane = next((folder / "run").rglob(f"lanes/*{site}*"))
    width = whole.shape[1]
    mapped = np.memmap(lane, np.float32, "r", 4096, (len(whole), width))
    chance = np.random.default_rng(0)
    chosen = chance.integers(0, len(whole), 10_000 * 2000 // width + 1)

    # Each turn reads a run that was opened before and has checked nothing yet.
    opened = [tt.open(folder / "run") for _ in range(2 * (rounds + 1))]

    def read_site() -> None:
        start = 0
        for one in opened.pop().records(site):
            target[start : start + len(one.value)].copy_(one.value)
            start += len(one.value)

    def read_step() -> None:
        start = 0
        for one in opened.pop().records(steps=3):
            flat_target[start : start + one.value.numel()].copy_(one.value.flatten())
            start += one.value.numel()

    unverified = tt.open(folder / "run", verify=False)
    return [
        Result(
            "one site over all steps, checked and copied, to memcpy",
            f"{ratio(lambda: target.copy_(whole), read_site, rounds):.2f}x",
            "1.1x",
            f"{whole.nbytes / 1e6:.0f} MB",
        ),
        Result(
            "one step over all sites, the same",
            f"{ratio(lambda: flat_target.copy_(flat), read_step, rounds):.2f}x",
            "1.1x",
            f"{flat.nbytes / 1e6:.0f} MB",
        ),
        Result(
            f"{len(chosen):,} random rows, to numpy's memmap",
            f"{ratio(lambda: mapped[chosen], lambda: unverified.rows(site, chosen), rounds):.2f}x",
            "2x",
            "verify=False",
        ),
    ]


def epochs(folder: Path, rounds: int) -> Result:
    """A shuffled epoch through a loader, to one in order."""
    layer = torch.nn.Identity()
    with tt.watch(layer, to=tt.Disk(folder / "rows", durability="none")) as w:
        for _ in range(50):
            layer(torch.randn(1024, 768))
            w.step()
    data = tt.open(folder / "rows").dataset(".:output")

    def epoch(sampler: Any) -> None:
        batches = BatchSampler(sampler, 256, drop_last=False)
        for _ in DataLoader(data, sampler=batches, batch_size=None):
            pass

    found = ratio(
        lambda: epoch(SequentialSampler(data)), lambda: epoch(RandomSampler(data)), rounds
    )
    return Result("a shuffled epoch, to one in order", f"{found:.2f}x", "1.5x", "51,200 rows")


def statistics(folder: Path) -> list[Result]:
    """300 sites and 1,000 steps of statistics alone."""
    layers = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(300)])
    value = torch.randn(256)
    sinks = [tt.Disk(folder / "stats", values=None, durability="none"), tt.Stats()]
    times: list[float] = []
    with tt.watch(layers, "?*", to=sinks) as w:
        for step in range(1, 1001):
            layers(value)
            start = time.perf_counter()
            w.step()
            if step % 50 == 0:
                times.append(time.perf_counter() - start)
        start = time.perf_counter()
    closing = time.perf_counter() - start
    start = time.perf_counter()
    run = tt.open(folder / "stats")
    run.over_steps("7:output", "l2")
    opening = time.perf_counter() - start
    return [
        Result(
            "statistics of 300 sites, 50 steps written",
            f"{median(times) * 1e3:.0f} ms",
            "30 ms",
            "",
        ),
        Result("closed after 1,000 steps", f"{closing:.2f} s", "-", ""),
        Result("opened, one site over all steps", f"{opening:.2f} s", "0.3 s", ""),
    ]


def options_of() -> argparse.ArgumentParser:
    found = parser(__doc__ or "")
    found.set_defaults(rounds=5)
    found.add_argument("--folder", type=Path, help="on the file system that is to be measured")
    return found


def main() -> None:
    """Print the table."""
    options = begin(options_of())
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    kept = values()
    try:
        speeds, cpus = [], []
        for _ in range(options.rounds):
            shutil.rmtree(folder / "run", ignore_errors=True)
            raw, disk = write_raw(folder, kept), write_disk(folder, kept)
            speeds.append(raw.seconds / disk.seconds)
            cpus.append(disk.cpu / raw.cpu)
        rate = f"one large write {NUM_STEPS * STEP_BYTES / raw.seconds / 1e9:.2f} GB/s"
        queue = 64 << 20
        rows = [
            Result(
                "speed of appending, to one large write",
                f"{median(speeds):.2f}x",
                "0.9x at least",
                rate,
            ),
            Result("CPU of it", f"{median(cpus):.2f}x", "1.2x", ""),
            Result("a step of one second held up by", f"{stall(folder, kept):.1%}", "5 %", ""),
            Result(
                "memory, with a queue of 64 MiB",
                f"{peak_memory(folder, kept, queue) / 2**20:.0f} MiB",
                "128 MiB",
                "",
            ),
            *reading(folder, options.rounds),
            epochs(folder, options.rounds),
            *statistics(folder),
        ]
        for name, seconds in others(folder, kept).items():
            rows.append(
                Result(
                    f"{name}, to tt.Disk", f"{seconds / disk.seconds:.1f}x", "-", "the same bytes"
                )
            )
    finally:
        shutil.rmtree(folder)
    show(rows, options, "What a run on disk costs", __file__, HOW)


if __name__ == "__main__":
    main()
