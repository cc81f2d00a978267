"""Keeps rows and histograms on a device, made beforehand and never moved.

Kernels add to them where they are; Python reads a copy, one step later. On a CUDA device the copy
runs beside the training and is waited for only when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchtap.stats.histogram import NUM_BINS, Histograms, blank_histograms
from torchtap.stats.kernels import native
from torchtap.stats.statistics import (
    LEAST_BIN,
    NUM_COUNTED,
    NUM_FINITE,
    ROW_WIDTH,
    empty_rows,
)
from torchtap.stats.step_histograms import StepHistograms

BLOCK = 256
"""Rows that are made at once."""
_LISTED_BINS, _LISTS = 1024, 4
"""Room for histograms of small tensors in a step: bins, and lists of them, per row."""

Rows = NDArray[np.float64]
Taken = tuple[NDArray[np.int64], Rows, list[StepHistograms]]
"""Places of sites, their rows, and the histograms of their tensors."""


class TakenStep(NamedTuple):
    """Copies of what was measured in a step.

    Attributes:
        step: its number.
        read: waits for the copies, and returns them.
        is_here: whether they are in memory, and no device is asked.
    """

    step: int
    read: Callable[[], Taken]
    is_here: bool


Unread = list[TakenStep]
_BlockTaken = tuple[Rows, list[tuple[NDArray[np.int64], Histograms]]]
"""Rows of a block, and histograms with the row that each of them is of."""
_UNREAD = 16
"""Steps whose numbers are read together, on the CPU. Between two steps of a training the code that
reads them leaves the processor's caches, and then takes several times as long as it does for the
second of two steps in a row. On other devices they are read one step later, so that copies on the
host do not pile up."""


class Block:
    """Holds some rows of a table.

    Attributes:
        rows: ``float64[256, 16]``.
        blank: rows that nothing was measured into.
        host: both as arrays, on the CPU.
        address: of the rows.
        histograms: ``int64[256, 8192]`` of the running step, or ``None``.
        lists: takes histograms of small tensors instead, on the CPU.
    """

    __slots__ = ("address", "blank", "histograms", "host", "lists", "rows")

    def __init__(self, device: torch.device, *, histogram: bool) -> None:
        self.rows, self.blank = empty_rows(BLOCK, device), empty_rows(BLOCK, device)
        self.host = (self.rows.numpy(), self.blank.numpy()) if device.type == "cpu" else None
        self.address = self.rows.data_ptr()
        self.histograms = _counters(device) if histogram else None
        self.lists = None
        if histogram and device.type == "cpu":
            self.lists = native.SparseLog(BLOCK * _LISTED_BINS, BLOCK * _LISTS)

    def at(self, index: int) -> tuple[Tensor, Tensor | None]:
        """Return one row and its histogram."""
        return self.rows[index], None if self.histograms is None else self.histograms[index]

    def aim(self, index: int, sample: int) -> native.KernelArgs:
        """Return the native kernel's arguments to measure into one row."""
        return native.KernelArgs(self.rows, self.histograms, sample, self.lists, index, index)

    def clear(self, index: int) -> None:
        """Forget what was measured into one row."""
        self.rows[index] = self.blank[index]
        if self.histograms is not None:
            self.histograms[index].zero_()
        if self.lists is not None:
            self.lists.forget(index)


class DeviceTable:
    """Holds the rows of one device, and the place of the site that each is of."""

    def __init__(self, device: torch.device, *, histogram: bool) -> None:
        self.device = device
        self._is_here = device.type == "cpu"
        self._histogram = histogram
        self._known: list[int] = []
        self._places = np.zeros(0, dtype=np.int64)
        self._blocks: list[Block] = []
        self._scratch: native.Scratch | None = None

    def add(self, place: int) -> tuple[Block, int]:
        """Add a row for a site; return its block, and its index there."""
        index = len(self._known) % BLOCK
        if index == 0:
            # Blocks of a fixed size: a table that grew would move, and the kernel holds addresses
            # of rows.
            self._blocks.append(Block(self.device, histogram=self._histogram))
        self._known.append(place)
        return self._blocks[-1], index

    def take(self, step: int) -> TakenStep:
        """Copy what was measured in a step, before :meth:`clear`."""
        take = self._take_here if self._is_here else self._take_there
        reads = []
        num_rows = len(self._known)
        if len(self._places) < num_rows:
            self._places = np.array(self._known)
        # All copies begin before any is waited for.
        for first in range(0, num_rows, BLOCK):
            used = min(BLOCK, num_rows - first)
            reads.append(take(self._blocks[first // BLOCK], first, used))
        places = self._places
        event = None
        if not self._is_here and self.device.type == "cuda":
            # Who waits for it waits for these copies, and for nothing that the training does next.
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()

        def read() -> Taken:
            if event is not None:
                event.synchronize()
            parts = [copy() for copy in reads]
            rows = [rows for rows, _ in parts] or [np.zeros((0, ROW_WIDTH))]
            listed = [StepHistograms(places[at], own) for _, lists in parts for at, own in lists]
            return places, np.concatenate(rows), listed

        return TakenStep(step, read, event is None)

    def clear(self) -> None:
        """Start again with blank rows."""
        for place, block in enumerate(self._blocks):
            if block.host is None:
                block.rows.copy_(block.blank)
                if block.histograms is not None:
                    block.histograms.zero_()
                continue
            rows, blank = block.host
            used = min(BLOCK, len(self._known) - place * BLOCK)
            if native.available():
                native.clear_block(block.address, used, block.lists)
            else:
                rows[:used] = blank[:used]
                if block.histograms is not None:
                    block.histograms[:used].zero_()

    def _take_here(self, block: Block, first: int, used: int) -> Callable[[], _BlockTaken]:
        """Take the rows and histograms of a block on the CPU."""
        assert block.host is not None
        if not native.available():
            taken = block.host[0][:used].copy()
            full = self._drain_full(block, first, taken)
            return lambda: (taken, full)
        copy = native.TakenBlock(block.address, used, block.lists)
        full = self._drain_full(block, first, copy.rows()) if copy.has_full else []

        def read() -> _BlockTaken:
            taken = copy.rows()
            owners, drained = copy.lists()
            listed = (owners + first, Histograms(*drained, _is_sample(taken)[owners]))
            return taken, [listed, *full]

        return read

    def _drain_full(
        self, block: Block, first: int, taken: Rows
    ) -> list[tuple[NDArray[np.int64], Histograms]]:
        """Take the histograms of a block that are in no list."""
        is_full = taken[:, LEAST_BIN] > 0
        if block.histograms is None or not is_full.any():
            return []
        self._scratch = self._scratch or native.make_scratch(BLOCK)
        full = np.where(is_full[:, None], taken, 0.0)  # What is in lists is skipped.
        drained = native.drain(torch.from_numpy(full), block.histograms, self._scratch)
        return [(np.arange(first, first + len(taken)), Histograms(*drained, _is_sample(taken)))]

    def _take_there(self, block: Block, first: int, used: int) -> Callable[[], _BlockTaken]:
        """Take the rows and histograms of a block on another device."""
        rows = _copied(block.rows[:used])
        histograms = None if block.histograms is None else _copied(block.histograms[:used])

        def read() -> _BlockTaken:
            taken: Rows = rows.numpy()
            if histograms is None:
                return taken, []
            drained = native.drain(rows, histograms)
            counted = Histograms(*drained, _is_sample(taken))
            return taken, [(np.arange(first, first + used), counted)]

        return read


class DeviceTables:
    """Holds the tables of all devices, and the steps that were taken and not read yet."""

    def __init__(self, *, histogram: bool) -> None:
        self._histogram = histogram
        self._tables: dict[torch.device, DeviceTable] = {}
        self._unread: Unread = []
        self._behind = _UNREAD

    def add(self, device: torch.device, place: int) -> tuple[Block, int]:
        """Add a row for a site on a device; return its block, and its index there."""
        table = self._tables.get(device)
        if table is None:
            table = self._tables[device] = DeviceTable(device, histogram=self._histogram)
            # On the CPU reading several steps at once is cheaper; of a device each step is read one
            # step late, when its copies have arrived.
            self._behind = _UNREAD if all(one.type == "cpu" for one in self._tables) else 1
        return table.add(place)

    def take(self, step: int) -> Unread:
        """Copy what was measured in a step; nothing is changed before :meth:`start_again`."""
        return [table.take(step) for table in self._tables.values()]

    def start_again(self, taken: Unread) -> None:
        """Keep the copies to be read, and measure into blank rows. A second call does no harm."""
        # The last copies tell whether these were taken over by an earlier call.
        if taken and (not self._unread or self._unread[-1] is not taken[-1]):
            self._unread += taken
        for table in self._tables.values():
            table.clear()

    @property
    def are_due(self) -> bool:
        """Return whether the steps before the last one are many enough to be read."""
        return len(self._unread) > self._behind * len(self._tables)

    def read_all_but_last(self) -> Iterator[tuple[int, Taken]]:
        """Yield the steps before the last one."""
        return self.read(len(self._tables))

    def read(self, num_left: int = 0) -> Iterator[tuple[int, Taken]]:
        """Yield what was taken, step by step, but for some at the end."""
        while len(self._unread) > num_left:
            taken = self._unread.pop(0)
            yield taken.step, taken.read()

    def read_what_is_here(self) -> Iterator[tuple[int, Taken]]:
        """Yield what was taken, step by step, up to what a device would have to be asked for.

        Another thread may ask: it must not ask a device, as that ends the capture of a CUDA graph.
        """
        while self._unread and self._unread[0].is_here:
            yield from self.read(len(self._unread) - 1)


def _is_sample(rows: Rows) -> NDArray[np.bool_]:
    """Return whether histograms of these rows hold a sample of their elements."""
    is_sample: NDArray[np.bool_] = rows[:, NUM_COUNTED] < rows[:, NUM_FINITE]
    return is_sample


def _counters(device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.from_numpy(blank_histograms(BLOCK))
    return torch.zeros(BLOCK, NUM_BINS, dtype=torch.int64, device=device)


def _copied(tensor: Tensor) -> Tensor:
    """Return a copy on the host, which on CUDA is under way when this returns."""
    is_cuda = tensor.device.type == "cuda"
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_cuda)
    return host.copy_(tensor, non_blocking=is_cuda)
