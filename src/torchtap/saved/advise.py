"""Recommend the modules to offload, so that all that stays in memory fits a budget."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from torchtap.core.doors import require
from torchtap.core.errors import InputError
from torchtap.core.module_paths import modules_of
from torchtap.core.printed import Printed
from torchtap.core.printed_page import BLANK, Grid, Page
from torchtap.core.text import NONE, size
from torchtap.saved.choose_modules import choose, paths_of, patterns_for, wait_seconds
from torchtap.saved.offload_report import MOST_ROWS, labels_of
from torchtap.saved.profile import Profile, SavedMemory, profile_step
from torchtap.saved.spill_file import SpillFile, folder_for

_PROBE, _NUM_PROBES = 4 << 20, 8


@dataclass(frozen=True, slots=True)
class AdviceRow:
    """One module, by itself: without the modules in it.

    Attributes:
        path: of the module; ``"."`` for the root.
        type: class name.
        nbytes: bytes that it is the first to save, each memory once, without parameters and
            buffers.
        movable_nbytes: those of them that ``tt.offload`` can take in hand.
        seconds: time that it computes: from each of its saves to the next save, and from each of
            its uses to the next use.
        available: shortest time between saving and using one of the movable ones.
        wait: time that backward would wait if this module alone were offloaded.
        is_moved: whether it should be.
    """

    path: str
    type: str
    nbytes: int
    movable_nbytes: int
    seconds: float
    available: float
    wait: float
    is_moved: bool


@dataclass(frozen=True, slots=True, repr=False)
class OffloadAdvice(Printed):
    """The recommendation of :func:`advise_offload`. Printing it shows it.

    Attributes:
        model: class name.
        rows: modules that save anything, in the order in which they first do.
        where: patterns for ``tt.offload``; empty if all fits as it is.
        max_bytes: for ``tt.offload``: what the budget leaves for tensors on their way.
        budget: bytes, as asked.
        nbytes: bytes saved in all, without parameters and buffers.
        kept_nbytes: those that stay.
        write_speed: bytes per second that the disk took, until they were on it.
        fetch_speed: bytes per second that it gave back.
        step_seconds: time of the profiled step.
        wait_seconds: time that a step will wait for the disk.
        folder: whose disk was measured.
    """

    model: str
    rows: tuple[AdviceRow, ...]
    where: tuple[str, ...]
    max_bytes: int
    budget: int
    nbytes: int
    kept_nbytes: int
    write_speed: float
    fetch_speed: float
    step_seconds: float
    wait_seconds: float
    folder: str

    @property
    def moved_nbytes(self) -> int:
        """Return bytes that leave in each step."""
        return self.nbytes - self.kept_nbytes

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def _page(self) -> Page:
        return show_advice(self)


def advise_offload(
    model: nn.Module,
    step_fn: Callable[[], object],
    budget_bytes: int,
    *,
    min_bytes: int = 65536,
    dir: str | os.PathLike[str] | None = None,
    allow_tmpfs: bool = False,
) -> OffloadAdvice:
    """Run one step and say which modules to offload to disk, so that what stays fits a budget.

    Follow it with ``tt.offload("disk", model=model, where=advice.where,
    max_bytes=advice.max_bytes)``.

    The step is measured as it is, with each tensor's time of saving ``s`` and of first use ``u``;
    then the disk is measured by writing and fetching 32 MiB. Moving a tensor takes
    ``t = bytes / write_speed + bytes / fetch_speed``. All moved tensors that are saved no
    earlier than tensor ``i`` must have left and come back by ``u_i``, so a step waits::

        wait = max over moved i of max(0, sum of t_j over moved j with s_j >= s_i, less u_i - s_i)

    Backward uses first what was saved last, so an older tensor always has more time: modules are
    taken in the order in which they save, until what stays fits; then those that turn out not to
    be needed are left out again, the latest first. A tensor that several modules save (the output
    of one is the input of the next) is free only if all are offloaded, and counted so.

    Assumed: backward uses in the reverse order of saving; the disk does one thing at a time and is
    as fast in training as in the measurement (written until it is on the disk, fetched without the
    system's cache, so a step that fits in that cache waits less); copying to and from it takes no
    time from the computation; and the profiled step is like all others.

    Args:
        model: any module.
        step_fn: runs the forward and the backward once, and no optimizer. Gradients, buffers and
            random state are put back: of PyTorch on all devices, Python, NumPy, and generators
            that modules hold as attributes.
        budget_bytes: most bytes of saved tensors in memory, parameters and buffers aside.
            Tensors on their way count: room for two of the largest moved ones is kept free.
        min_bytes: smaller tensors stay; as for ``tt.offload``.
        dir: folder of the file; as for ``tt.offload``.
        allow_tmpfs: also measure a folder that lives in memory.

    Raises:
        InputError: the step saves or uses nothing, or even with everything offloaded more stays
            than the budget allows.

    Example:
        >>> import torch, torchtap as tt
        >>> layers = [torch.nn.Linear(128, 128), torch.nn.Tanh()] * 2
        >>> model, x = torch.nn.Sequential(*layers), torch.ones(1024, 128)
        >>> advice = tt.advise_offload(model, lambda: model(x).sum().backward(), 1 << 20)
        >>> advice.nbytes, advice.kept_nbytes, advice.where
        (1572864, 0, ('.',))
    """
    require("tt.advise_offload", model)
    if not isinstance(budget_bytes, int) or budget_bytes < 0:
        raise InputError(f"budget_bytes is {budget_bytes!r}; expected a number of bytes from 0.")
    folder = folder_for(dir, allow_memory=allow_tmpfs)
    modules, _ = modules_of(model)
    profile = profile_step(model, modules, step_fn, min_bytes)
    saved = profile.saved
    moved = choose(saved, budget_bytes)
    write_speed, fetch_speed = _disk_speeds(folder)
    cost = 1 / write_speed + 1 / fetch_speed
    # Memory that a module outside of the choice saves too stays, whatever the others do.
    leaving = [one for one in saved if one.leaves(moved)]
    nbytes = sum(one.nbytes for one in saved)
    kept = nbytes - sum(one.nbytes for one in leaving)
    largest = max((one.nbytes for one in leaving), default=0)
    return OffloadAdvice(
        model=type(modules[""]).__name__,
        rows=_rows(profile, modules, moved, cost),
        where=patterns_for(saved, modules, moved),
        max_bytes=budget_bytes - kept - largest,
        budget=budget_bytes,
        nbytes=nbytes,
        kept_nbytes=kept,
        write_speed=write_speed,
        fetch_speed=fetch_speed,
        step_seconds=profile.end - profile.begin,
        wait_seconds=wait_seconds(leaving, cost),
        folder=str(folder),
    )


def _rows(
    profile: Profile, modules: dict[str, nn.Module], moved: set[str], cost: float
) -> tuple[AdviceRow, ...]:
    saved, seconds = profile.saved, profile.seconds()
    by_path: dict[str, list[SavedMemory]] = {path: [] for path in paths_of(saved)}
    for one in saved:
        by_path[one.path].append(one)
    rows = []
    for path, own in by_path.items():
        movable = [one for one in own if one.is_movable]
        rows.append(
            AdviceRow(
                path=path or ".",
                type=type(modules[path]).__name__,
                nbytes=sum(one.nbytes for one in own),
                movable_nbytes=sum(one.nbytes for one in movable),
                seconds=seconds.get(path, 0.0),
                available=min((one.gap for one in movable), default=0.0),
                wait=wait_seconds(movable, cost),
                is_moved=path in moved,
            )
        )
    return tuple(rows)


def _disk_speeds(folder: Path) -> tuple[float, float]:
    """Bytes per second, written until they are on the disk, and fetched from there."""
    file = SpillFile(folder)
    # Random bytes: some disks and file systems compress, and zeros would be written in no time.
    data = memoryview(bytearray(os.urandom(_PROBE)))
    extents = [file.reserve(_PROBE) for _ in range(_NUM_PROBES)]
    start = time.perf_counter()
    for extent in extents:
        file.write(extent, data)
    file.sync()
    middle = time.perf_counter()
    # The pages leave the system's cache, or memory would be measured and not the disk.
    file.forget()
    again = time.perf_counter()
    for extent in extents:
        file.read(extent, data)
    end = time.perf_counter()
    file.close()
    nbytes = _PROBE * _NUM_PROBES
    return nbytes / (middle - start), nbytes / (end - again)


_ADVICE = ("module", "type", "saved", "movable", "compute", "free time", "wait alone", "offload")


def show_advice(advice: OffloadAdvice) -> Page:
    """Return one line per module, the advice below."""
    labels = labels_of([row.path for row in advice.rows])
    cells = [
        (
            label,
            row.type,
            size(row.nbytes),
            size(row.movable_nbytes) if row.movable_nbytes else NONE,
            f"{row.seconds * 1e3:.1f} ms",
            f"{row.available * 1e3:.1f} ms" if row.movable_nbytes else NONE,
            f"{row.wait * 1e3:.1f} ms" if row.movable_nbytes else NONE,
            "yes" if row.is_moved else "",
        )
        for label, row in zip(labels, advice.rows, strict=True)
    ]
    table = Grid(cells, _ADVICE, "lerrrrrl", elastic={0: 16, 1: 9}, limit=MOST_ROWS, noun="module")
    return Page(table, BLANK, Grid(_advised(advice)))


def _advised(advice: OffloadAdvice) -> list[tuple[str, str]]:
    saved = f"{size(advice.nbytes)} without parameters and buffers"
    speeds = f"{size(int(advice.write_speed))}/s, fetch {size(int(advice.fetch_speed))}/s"
    said = [
        ("Saved", f"{saved}; the budget is {size(advice.budget)}"),
        ("Disk", f"write {speeds}, in {advice.folder}"),
    ]
    if not advice.where:
        return [*said, ("Advice", "nothing to offload: it fits")]
    left = size(advice.budget - advice.kept_nbytes)
    where = ", ".join(repr(path) for path in advice.where)
    wait, step = advice.wait_seconds * 1e3, advice.step_seconds * 1e3
    return [
        *said,
        ("Stays", f"{size(advice.kept_nbytes)}, and up to {left} on its way"),
        ("Waits", f"{wait:.1f} ms in a step of {step:.1f} ms"),
        ("Advice", f"where=[{where}], max_bytes={advice.max_bytes}"),
    ]
