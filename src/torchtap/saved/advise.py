"""Which modules to offload, so that what stays in memory fits a budget."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from torchtap.core.errors import InputError
from torchtap.core.modules import modules_of
from torchtap.core.page import BLANK, Grid, Page, Printed
from torchtap.core.plan import make_plan
from torchtap.core.preserved import preserved
from torchtap.core.tensors import storage_id
from torchtap.core.text import NONE, size
from torchtap.hooks.graph import num_casts
from torchtap.hooks.saved_pairs import Guarded, checked, guarded
from torchtap.hooks.scope import ModuleScope
from torchtap.saved.blocks import Buffers
from torchtap.saved.layout import form_of
from torchtap.saved.offload_report import MOST_ROWS, labels_of
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
    """What :func:`advise_offload` recommends. Printing it shows it.

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
        """Bytes that leave in each step."""
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
    ``t = bytes / write_speed + bytes / fetch_speed``. Of the tensors that are moved, those saved no
    earlier than tensor ``i`` must have left and come back by ``u_i``, so a step waits::

        wait = max over moved i of max(0, sum of t_j over moved j with s_j >= s_i, less u_i - s_i)

    Backward uses first what was saved last, so an older tensor always has more time: modules are
    taken in the order in which they save, until what stays fits; then those that turn out not to
    be needed are left out again, the latest first. What several modules save (the output of one is
    the input of the next) is free only if all of them are offloaded, and counted so.

    Assumed: backward uses in the reverse order of saving; the disk does one thing at a time and is
    as fast in training as in the measurement (written until it is on the disk, fetched without the
    system's cache, so a step that fits in that cache waits less); copying to and from it takes no
    time from the computation; and the profiled step is like all others.

    Args:
        model: any module.
        step_fn: runs the forward and the backward once, and no optimizer. Gradients, buffers and
            random state are put back: of PyTorch on all devices, Python, NumPy, and generators
            that modules hold as attributes.
        budget_bytes: most bytes of saved tensors in memory, parameters and buffers aside. What is
            on its way counts: room for two of the largest moved tensors is kept free.
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
    if not isinstance(budget_bytes, int) or budget_bytes < 0:
        raise InputError(f"budget_bytes is {budget_bytes!r}; expected a number of bytes from 0.")
    folder = folder_for(dir, allow_memory=allow_tmpfs)
    modules, _ = modules_of(model)
    profile = _profile(model, modules, step_fn, min_bytes)
    saved = profile.saved
    moved = _choose(saved, budget_bytes)
    write_speed, fetch_speed = _disk_speeds(folder)
    cost = 1 / write_speed + 1 / fetch_speed
    leaving = [one for one in saved if one.leaves(moved)]
    nbytes = sum(one.nbytes for one in saved)
    kept = nbytes - sum(one.nbytes for one in leaving)
    largest = max((one.nbytes for one in leaving), default=0)
    return OffloadAdvice(
        model=type(modules[""]).__name__,
        rows=_rows(profile, modules, moved, cost),
        where=_patterns(saved, modules, moved),
        max_bytes=budget_bytes - kept - largest,
        budget=budget_bytes,
        nbytes=nbytes,
        kept_nbytes=kept,
        write_speed=write_speed,
        fetch_speed=fetch_speed,
        step_seconds=profile.end - profile.begin,
        wait_seconds=_wait(leaving, cost),
        folder=str(folder),
    )


def _rows(
    profile: _Recorder, modules: dict[str, nn.Module], moved: set[str], cost: float
) -> tuple[AdviceRow, ...]:
    saved, seconds = profile.saved, profile.seconds()
    rows = []
    for path in _paths(saved):
        own = [one for one in saved if one.path == path]
        movable = [one for one in own if one.is_movable]
        rows.append(
            AdviceRow(
                path=path or ".",
                type=type(modules[path]).__name__,
                nbytes=sum(one.nbytes for one in own),
                movable_nbytes=sum(one.nbytes for one in movable),
                seconds=seconds.get(path, 0.0),
                available=min((one.gap for one in movable), default=0.0),
                wait=_wait(movable, cost),
                is_moved=path in moved,
            )
        )
    return tuple(rows)


def _patterns(
    saved: Sequence[_Saved], modules: dict[str, nn.Module], moved: set[str]
) -> tuple[str, ...]:
    """The outermost modules in which all that save anything are moved."""
    paths = _paths(saved)
    chosen: list[str] = []
    for path in modules:
        inside = [one for one in paths if one == path or _is_in(one, path)]
        if inside and moved.issuperset(inside) and not _above(path, chosen):
            chosen.append(path)
    return tuple(path or "." for path in chosen)


# ---------------------------------------------------------------------- the profiled step


class _Saved:
    """Memory that is held because it is saved: numbers only.

    Attributes:
        paths: modules that save it. It is free only when all of them let go of it.
        is_movable: whether ``tt.offload`` takes in hand all that is saved of it.
    """

    __slots__ = ("is_movable", "nbytes", "paths", "saved_at", "used_at")

    def __init__(self, nbytes: int, saved_at: float) -> None:
        self.paths: dict[str, None] = {}
        self.nbytes = nbytes
        self.saved_at = saved_at
        self.used_at = float("inf")
        self.is_movable = True

    @property
    def path(self) -> str:
        """The module that saved it first."""
        return next(iter(self.paths))

    @property
    def gap(self) -> float:
        """Seconds between saving and first use."""
        return self.used_at - self.saved_at

    def leaves(self, moved: set[str]) -> bool:
        """Whether it does where these modules are offloaded."""
        return self.is_movable and moved.issuperset(self.paths)


_Packed = tuple[Guarded, str, _Saved | None]


class _Recorder:
    """Notes when memory is saved and used, and moves nothing."""

    def __init__(self, model: nn.Module, min_bytes: int, attachment: ModuleScope) -> None:
        self.saved: list[_Saved] = []
        self.saves: list[tuple[float, str]] = []
        self.uses: list[tuple[float, str]] = []
        self.begin = self.end = 0.0
        self._min_bytes = min_bytes
        self._attachment = attachment
        self._params = {storage_id(param) for param in model.parameters()} - {0}
        self._buffers = Buffers(modules_of(model)[0].items())
        self._known: dict[int, tuple[_Saved, StorageWeakRef]] = {}

    def pack(self, tensor: Tensor) -> _Packed:
        path = self._attachment.path()
        guard = guarded(tensor)
        now = _now(tensor)
        self.saves.append((now, path))
        storage = storage_id(tensor)
        if storage in self._params or storage in self._buffers:
            return guard, path, None
        saved = self._memory_of(tensor, now)
        saved.paths[path] = None
        is_small = tensor.numel() * tensor.element_size() < self._min_bytes
        if is_small or isinstance(form_of(tensor), str) or num_casts(tensor) is not None:
            saved.is_movable = False
        return guard, path, saved

    def unpack(self, packed: _Packed) -> Tensor:
        guard, path, saved = packed
        tensor = checked(guard)
        now = _now(tensor)
        self.uses.append((now, path))
        if saved is not None:
            saved.used_at = min(saved.used_at, now)
        return tensor

    def seconds(self) -> dict[str, float]:
        """Path -> time from its saves to the next ones, and from its uses to the next ones."""
        seconds: dict[str, float] = {}
        begin = self.uses[0] if self.uses else (self.end, "")
        for events in ([*self.saves, begin], [*self.uses, (self.end, "")]):
            for (moment, path), (following, _) in pairwise(events):
                seconds[path] = seconds.get(path, 0.0) + max(0.0, following - moment)
        return seconds

    def _memory_of(self, tensor: Tensor, now: float) -> _Saved:
        key = storage_id(tensor)
        found, held = self._known.get(key, (None, None))
        # An address is used again once its memory is gone.
        if key and found is not None and held is not None and not held.expired():  # type: ignore[no-untyped-call]
            return found
        nbytes = tensor.untyped_storage().nbytes() if key else tensor.nbytes
        found = _Saved(nbytes, now)
        self.saved.append(found)
        if key:
            self._known[key] = found, StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        return found


def _profile(
    model: nn.Module,
    modules: dict[str, nn.Module],
    step_fn: Callable[[], object],
    min_bytes: int,
) -> _Recorder:
    attachment = ModuleScope()
    # The wrapper itself, since the modules in a compiled graph do not run one by one.
    attachment.attach(make_plan(model, "*"), {**modules, "": model}, around=True)
    try:
        with preserved(modules), _gradients_put_back(model):
            recorder = _Recorder(model, min_bytes, attachment)
            attachment.pair = (recorder.pack, recorder.unpack)
            recorder.begin = time.perf_counter()
            step_fn()
            recorder.end = time.perf_counter()
    finally:
        attachment.detach()
    if not recorder.uses:
        raise InputError(
            f"step_fn ran no backward through {type(modules['']).__name__}: "
            f"{len(recorder.saves)} tensors were saved, none was used. It must run the forward of "
            f"this very model and the backward of its loss."
        )
    for one in recorder.saved:
        one.used_at = min(one.used_at, recorder.end)
    return recorder


@contextmanager
def _gradients_put_back(model: nn.Module) -> Iterator[None]:
    params = list(model.parameters())
    before = [param.grad for param in params]
    for param in params:
        param.grad = None
    try:
        yield
    finally:
        for param, grad in zip(params, before, strict=True):
            param.grad = grad


def _now(tensor: Tensor) -> float:
    if tensor.is_cuda:  # The host runs ahead of the device.
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter()


# ---------------------------------------------------------------------- the choice


def _choose(saved: Sequence[_Saved], budget: int) -> set[str]:
    """Paths to move. Where a module is offloaded, so are those in it."""
    paths = _paths(saved)
    total = sum(one.nbytes for one in saved)

    def needed(moved: set[str]) -> int:
        leaving = [one.nbytes for one in saved if one.leaves(moved)]
        return total - sum(leaving) + 2 * max(leaving, default=0)

    moved: set[str] = set()
    for one in saved:
        if needed(moved) <= budget:
            break
        if one.is_movable and not one.leaves(moved):
            moved |= {path for path in paths if path in one.paths or _above(path, one.paths)}
    if (least := needed(moved)) > budget:
        raise InputError(
            f"budget_bytes is {budget:,}; with everything offloaded {least:,} bytes still are in "
            f"memory: what is small or cannot be moved, and two of the largest tensors on their "
            f"way. Give at least {least:,}, or a smaller batch."
        )
    for path in reversed(paths):
        is_outermost = path in moved and not _above(path, moved)
        if is_outermost and needed(moved - {path}) <= budget:
            moved.remove(path)
    return moved


def _paths(saved: Iterable[_Saved]) -> list[str]:
    """Modules that save anything, in the order in which they first do."""
    return list(dict.fromkeys(path for one in saved for path in one.paths))


def _is_in(path: str, other: str) -> bool:
    return path != other and (not other or path.startswith(f"{other}."))


def _above(path: str, moved: Iterable[str]) -> bool:
    """Whether a module around it is moved."""
    return any(_is_in(path, other) for other in moved)


def _wait(moved: Iterable[_Saved], cost: float) -> float:
    """Seconds that backward waits; the formula of :func:`advise_offload`."""
    busy = wait = 0.0
    for one in sorted(moved, key=lambda one: -one.saved_at):
        busy += one.nbytes * cost
        wait = max(wait, busy - one.gap)
    return wait


def _disk_speeds(folder: Path) -> tuple[float, float]:
    """Bytes per second, written until they are on the disk, and fetched from there."""
    slab = SpillFile(folder)
    data = memoryview(bytearray(os.urandom(_PROBE)))
    extents = [slab.reserve(_PROBE) for _ in range(_NUM_PROBES)]
    start = time.perf_counter()
    for extent in extents:
        slab.write(extent, data)
    slab.sync()
    middle = time.perf_counter()
    slab.forget()
    again = time.perf_counter()
    for extent in extents:
        slab.read(extent, data)
    end = time.perf_counter()
    slab.close()
    nbytes = _PROBE * _NUM_PROBES
    return nbytes / (middle - start), nbytes / (end - again)


_ADVICE = ("module", "type", "saved", "movable", "compute", "free time", "wait alone", "offload")


def show_advice(advice: OffloadAdvice) -> Page:
    """One line per module, the advice below."""
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
