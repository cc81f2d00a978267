"""Rows and histograms on a device, made beforehand and never moved.

Kernels add to them where they are; Python reads a copy, one step later. On a CUDA device the copy
runs beside the training and is waited for only when it is read.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchtap.stats.histogram import NUM_BINS, Histograms
from torchtap.stats.kernels import native
from torchtap.stats.statistics import (
    LEAST_BIN,
    NUM_COUNTED,
    NUM_FINITE,
    ROW_WIDTH,
    empty_rows,
)

BLOCK = 256
"""Rows that are made at once."""
_LISTED_BINS, _LISTS = 1024, 4
"""Room for histograms of small tensors in a step: bins, and lists of them, per row."""

Rows = NDArray[np.float64]
Listed = tuple[NDArray[np.int64], Histograms]
"""Histograms, and the row that each of them is of."""
Taken = tuple[Rows, list[Listed]]
"""All rows, and what their tensors' histograms are."""


class Block:
    """Some rows of a table.

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
        if histogram and device.type == "cpu":
            self.lists = native.SparseLog(BLOCK * _LISTED_BINS, BLOCK * _LISTS)

    def aim(self, index: int, sample: int) -> native.KernelArgs:
        """Return the native kernel's arguments to measure into one row."""
        histogram = None if self.histograms is None else self.histograms[index]
        return native.KernelArgs(self.rows[index], histogram, sample, self.lists, index)

    def clear(self, index: int) -> None:
        """Forget what was measured into one row."""
        self.rows[index] = self.blank[index]
        if self.histograms is not None:
            self.histograms[index].zero_()
        if self.lists is not None:
            self.lists.forget(index)


class DeviceTable:
    """The rows of one device.

    Attributes:
        num_rows: rows in use.
    """

    def __init__(self, device: torch.device, *, histogram: bool) -> None:
        self.device = device
        self.num_rows = 0
        self._histogram = histogram
        self._blocks: list[Block] = []
        self._scratch: native.Scratch | None = None

    def add(self) -> tuple[Block, int]:
        """One more row: its block, and its place there."""
        if self.num_rows == len(self._blocks) * BLOCK:
            self._blocks.append(Block(self.device, histogram=self._histogram))
        self.num_rows += 1
        return self._blocks[-1], (self.num_rows - 1) % BLOCK

    def take(self) -> Callable[[], Taken]:
        """Copy what was measured and start again; call the result to have the copy."""
        take = self._take_here if self.device.type == "cpu" else self._take_there
        reads = []
        for first in range(0, self.num_rows, BLOCK):
            used = min(BLOCK, self.num_rows - first)
            reads.append(take(self._blocks[first // BLOCK], first, used))
        event = None
        if self.device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()

        def read() -> Taken:
            if event is not None:
                event.synchronize()
            parts = [copy() for copy in reads]
            rows = [rows for rows, _ in parts] or [np.zeros((0, ROW_WIDTH))]
            return np.concatenate(rows), [one for _, listed in parts for one in listed]

        return read

    def _take_here(self, block: Block, first: int, used: int) -> Callable[[], Taken]:
        """Take the rows and histograms of a block on the CPU."""
        assert block.host is not None
        rows, blank = block.host
        taken = rows[:used].copy()
        rows[:used] = blank[:used]
        listed = []
        if block.lists is not None:
            owners, drained = block.lists.take()
            listed.append((owners + first, Histograms(*drained, _is_sample(taken)[owners])))
        is_full = taken[:, LEAST_BIN] > 0
        if block.histograms is not None and is_full.any():
            self._scratch = self._scratch or native.make_scratch(BLOCK)
            full = np.where(is_full[:, None], taken, 0.0)  # What is in lists is skipped.
            drained = native.drain(torch.from_numpy(full), block.histograms, self._scratch)
            listed.append((np.arange(first, first + used), Histograms(*drained, _is_sample(taken))))
        return lambda: (taken, listed)

    def _take_there(self, block: Block, first: int, used: int) -> Callable[[], Taken]:
        """Take the rows and histograms of a block on another device."""
        rows = _copied(block.rows[:used])
        block.rows.copy_(block.blank)
        histograms = None
        if block.histograms is not None:
            histograms = _copied(block.histograms[:used])
            block.histograms.zero_()

        def read() -> Taken:
            taken: Rows = rows.numpy()
            if histograms is None:
                return taken, []
            drained = native.drain(rows, histograms)
            return taken, [
                (np.arange(first, first + used), Histograms(*drained, _is_sample(taken)))
            ]

        return read


def _is_sample(rows: Rows) -> NDArray[np.bool_]:
    """Return whether histograms of these rows hold a sample of their elements."""
    is_sample: NDArray[np.bool_] = rows[:, NUM_COUNTED] < rows[:, NUM_FINITE]
    return is_sample


def _counters(device: torch.device) -> Tensor:
    if device.type == "cpu":
        # Memory that is not touched costs nothing when it comes from calloc.
        return torch.from_numpy(np.zeros((BLOCK, NUM_BINS), dtype=np.int64))
    return torch.zeros(BLOCK, NUM_BINS, dtype=torch.int64, device=device)


def _copied(tensor: Tensor) -> Tensor:
    """A copy on the host, which on CUDA is under way when this returns."""
    is_cuda = tensor.device.type == "cuda"
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_cuda)
    return host.copy_(tensor, non_blocking=is_cuda)
