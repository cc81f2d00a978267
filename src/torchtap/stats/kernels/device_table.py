"""Keeps rows and histograms on a device, made beforehand and never moved.

Kernels add to them where they are; Python reads a copy, one step later. On a CUDA device the copy
runs beside the training and is waited for only when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchtap.core.inference_mode import outside_inference_mode
from torchtap.core.weak_method import weakly
from torchtap.stats.histogram import NUM_BINS, Histograms, blank_histograms
from torchtap.stats.kernels import native
from torchtap.stats.rows import NUM_COUNTED, NUM_FINITE, blank_rows, empty_rows
from torchtap.stats.step_histograms import StepHistograms

_CPU = torch.device("cpu")
BLOCK = 256
"""Rows that are made at once."""
_LISTED_BINS, _LISTS = 1024, 4
"""Room for histograms of small tensors in a step: bins, and lists of them, per row."""

Rows = NDArray[np.float64]
Taken = tuple[Rows, list[StepHistograms]]
"""Rows, each at the place of its site, and histograms."""


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
_new_taken: Callable[[Any], TakenStep] = partial(tuple.__new__, TakenStep)  # Of its three parts.
_BlockTaken = tuple[Rows, list[tuple[NDArray[np.int64], Histograms]]]
"""Rows of a block, and histograms with the row that each of them is of."""
_LEAST_UNREAD, _MOST_UNREAD = 16, 64
"""Bounds of how many steps are read together, on the CPU: as many as histograms are kept of anyway.
After a step of a training the code that reads them has left the processor's caches, and takes
270 us to come back, as long as it then takes for 50 steps. On other devices they are read one step
later, so that copies on the host do not pile up."""


class Block:
    """Holds some rows of a table.

    Attributes:
        rows: ``float64[256, 16]``.
        blank: rows that nothing was measured into.
        host: both as arrays, on the CPU.
        histograms: ``int64[256, 8192]`` of the running step, or ``None``.
        lists: takes histograms of small tensors instead, on the CPU.
    """

    __slots__ = ("blank", "histograms", "host", "lists", "rows")

    def __init__(self, device: torch.device, *, histogram: bool) -> None:
        self.rows, self.blank = empty_rows(BLOCK, device), empty_rows(BLOCK, device)
        self.host = (self.rows.numpy(), self.blank.numpy()) if device.type == "cpu" else None
        self.histograms = _counters(device) if histogram else None
        self.lists = None
        if histogram and device.type == "cpu" and native.closes_tables():
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


_MOST_SPARE = 2
_spare: list[Block] = []
"""Blocks on the CPU that a sink left empty, for the next one: a program may open a watch for each
step, and memory that is new costs several times what is written into it."""


def _spare_block(device: torch.device, *, histogram: bool) -> Block | None:
    if device.type != "cpu" or not histogram:
        return None
    try:
        return _spare.pop()
    except IndexError:
        return None


class DeviceTable:
    """Holds the rows of one device, and the place of the site that each is of.

    On the CPU the binary hands over what was measured in a step and empties the table, in one call.
    Without it, and of other devices, copies are made before.
    """

    def __init__(
        self, device: torch.device, native_blocks: native.TableBlocks | None, *, histogram: bool
    ) -> None:
        self.device = device
        self._is_here = device.type == "cpu"
        self._histogram = histogram
        self._known: list[int] = []
        self._places = np.zeros(0, dtype=np.int64)
        self._blocks: list[Block] = []
        self._native = native_blocks
        self._closed: list[Any] = []

    def add(self, place: int) -> tuple[Block, int]:
        """Add a row for a site; return its block, and its index there."""
        if self._native is not None:
            return self.at(self._native.add_row(place))
        row = len(self._known)
        if row % BLOCK == 0:
            self.add_block()
        self._known.append(place)
        return self.at(row)

    def at(self, row: int) -> tuple[Block, int]:
        """Return the block of a row, and its index there."""
        return self._blocks[row // BLOCK], row % BLOCK

    def add_block(self) -> None:
        """Make room for more rows.

        Blocks have a fixed size: a table that grew would move, and the kernel holds addresses.
        """
        block = _spare_block(self.device, histogram=self._histogram)
        if block is None:
            block = Block(self.device, histogram=self._histogram)
        if self._native is not None:  # An interrupt may have left a block that it was not told of.
            del self._blocks[self._native.table.num_blocks :]
        self._blocks.append(block)
        if self._native is not None and block.host is not None:
            full = None if block.histograms is None else block.histograms.numpy()
            self._native.add_block(block.host[0], full, block.lists)

    def take(self, step: int) -> TakenStep:
        """Take what was measured in a step: copies, or what :meth:`clear` will hand over."""
        if self._native is not None:
            self._closed = []
            return TakenStep(step, partial(_read_closed, self._closed), True)
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
            rows = blank_rows(int(places.max(initial=-1)) + 1)
            rows[places] = np.concatenate([rows for rows, _ in parts])
            listed = [StepHistograms(places[at], own) for _, lists in parts for at, own in lists]
            return rows, listed

        return TakenStep(step, read, event is None)

    def give_back(self) -> None:
        """Give blocks to the next sinks. All have been emptied, and nobody will write into them."""
        for block in self._blocks:
            if block.lists is not None and len(_spare) < _MOST_SPARE:
                _spare.append(block)

    def clear(self) -> None:
        """Start again with blank rows. A second call does no harm."""
        if self._native is not None:
            self._native.close(self._closed)
            return
        for place, block in enumerate(self._blocks):
            if block.host is None:
                block.rows.copy_(block.blank)
                if block.histograms is not None:
                    block.histograms.zero_()
                continue
            rows, blank = block.host
            used = min(BLOCK, len(self._known) - place * BLOCK)
            rows[:used] = blank[:used]
            if block.histograms is not None:
                block.histograms[:used].zero_()

    def _take_here(self, block: Block, first: int, used: int) -> Callable[[], _BlockTaken]:
        """Take the rows and histograms of a block on the CPU, without the binary."""
        assert block.host is not None
        taken = block.host[0][:used].copy()
        if block.histograms is None:
            return lambda: (taken, [])
        drained = native.drain(torch.from_numpy(taken), block.histograms)
        counted = Histograms(*drained, _is_sample(taken))
        return lambda: (taken, [(np.arange(first, first + used), counted)])

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


def _read_closed(closed: list[Any]) -> Taken:
    """Read what the binary handed over of a step."""
    rows, listed = native.read_closed(closed)
    return rows, [
        StepHistograms(own.places, Histograms(*own.drained, own.are_samples)) for own in listed
    ]


class DeviceTables:
    """Holds the tables of all devices, and the steps that were taken and not read yet.

    Args:
        histogram: whether they count histograms.
        keep: of how many steps histograms are kept once they were read.

    Attributes:
        native: the rows on the CPU, which native meters may take too; ``None`` without the binary.
        lone: these, where there is no other table.
    """

    def __init__(self, *, histogram: bool, keep: int) -> None:
        self._histogram = histogram
        self._tables: dict[torch.device, DeviceTable] = {}
        self._unread: Unread = []
        self._together = min(max(keep, _LEAST_UNREAD), _MOST_UNREAD)
        self._most_unread = self._together
        self.lone: native.TableBlocks | None = None
        self.native: native.TableBlocks | None = None
        if native.closes_tables():
            self.native = native.TableBlocks(weakly(self._add_block_on_cpu), BLOCK)

    def add(self, device: torch.device, place: int) -> tuple[Block, int]:
        """Add a row for a site on a device; return its block, and its index there."""
        return self._table_on(device).add(place)

    def on_cpu(self, row: int) -> tuple[Block, int]:
        """Return the block of a row of the table on the CPU, and its index there."""
        return self._table_on(_CPU).at(row)

    def _add_block_on_cpu(self) -> None:
        with outside_inference_mode():  # A native meter may ask for it there.
            self._table_on(_CPU).add_block()

    def _table_on(self, device: torch.device) -> DeviceTable:
        table = self._tables.get(device)
        if table is None:
            rows = self.native if device.type == "cpu" else None
            table = DeviceTable(device, rows, histogram=self._histogram)
            self._tables[device] = table
            # On the CPU reading several steps at once is cheaper; of a device each step is read one
            # step late, when its copies have arrived.
            is_alone = all(one.type == "cpu" for one in self._tables)
            self._most_unread = self._together if is_alone else len(self._tables)
            self.lone = rows if is_alone else None
        return table

    def give_back(self) -> None:
        """Give the memory to the next sinks: nobody measures into it any more."""
        for table in self._tables.values():
            table.give_back()

    def close_lone(self, step: int, table: native.TableBlocks) -> None:
        """Take what was measured in a step into the lone table, and begin again.

        Where it was interrupted, another call takes what is there yet.
        """
        closed: list[Any] = []
        self._unread.append(_new_taken((step, partial(_read_closed, closed), True)))
        table.table.close(closed)

    def take(self, step: int) -> Unread:
        """Take what was measured in a step; nothing is changed before :meth:`start_again`."""
        return [table.take(step) for table in self._tables.values()]

    def start_again(self, taken: Unread) -> None:
        """Keep what was taken, to be read, and measure into blank rows.

        A second call does no harm: the last step that is kept tells whether it is this one.
        """
        if taken and (not self._unread or self._unread[-1] is not taken[-1]):
            self._unread += taken
        for table in self._tables.values():
            table.clear()

    @property
    def are_due(self) -> bool:
        """Return whether the steps before the last one are many enough to be read."""
        return len(self._unread) > self._most_unread

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
