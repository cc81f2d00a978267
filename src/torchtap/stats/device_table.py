"""Rows and histograms on a device, made beforehand and never moved.

Kernels add to them where they are; Python reads a copy, one step later. On a CUDA device the copy
runs beside the training and is waited for only when somebody reads it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchtap.stats import native
from torchtap.stats.histogram import NUM_BINS, Histogram, Histograms
from torchtap.stats.statistics import (
    NUM_COUNTED,
    NUM_FINITE,
    ROW_WIDTH,
    empty_rows,
)

BLOCK = 256
"""Rows that are made at once."""

Taken = tuple[NDArray[np.float64], list[Histograms]]
"""All rows, and the histograms block by block (none if they are not counted)."""


class Block:
    """Some rows of a table.

    Attributes:
        rows: ``float64[256, 16]``.
        blank: rows that nothing was measured into.
        histograms: ``int64[256, 8192]`` of the running step, or ``None``.
        totals: the same of all steps that were taken.
    """

    __slots__ = ("blank", "histograms", "rows", "totals")

    def __init__(self, device: torch.device, *, histogram: bool) -> None:
        self.rows, self.blank = empty_rows(BLOCK, device), empty_rows(BLOCK, device)
        self.histograms = _counters(device) if histogram else None
        self.totals = _counters(device) if histogram else None

    def clear(self, index: int) -> None:
        """Forget what was measured into one row."""
        self.rows[index] = self.blank[index]
        if self.histograms is not None:
            self.histograms[index].zero_()


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

    def total(self, row: int) -> Histogram | None:
        """What a row counted in all steps that were taken."""
        totals = self._blocks[row // BLOCK].totals
        return None if totals is None else Histogram.of(totals[row % BLOCK].cpu())

    def take(self) -> Callable[[], Taken]:
        """Copy what was measured and start again; call the result to have the copy."""
        reads = []
        for number, block in enumerate(self._blocks):
            used = min(BLOCK, self.num_rows - number * BLOCK)
            reads.append(self._take_block(block, used))
        event = None
        if self.device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()

        def read() -> Taken:
            if event is not None:
                event.synchronize()
            parts = [one() for one in reads]
            rows = [rows for rows, _ in parts] or [np.zeros((0, ROW_WIDTH))]
            return np.concatenate(rows), [h for _, h in parts if h is not None]

        return read

    def _take_block(
        self, block: Block, used: int
    ) -> Callable[[], tuple[NDArray[np.float64], Histograms | None]]:
        rows = _copied(block.rows[:used])
        histograms, drained = None, None
        if block.histograms is not None and block.totals is not None:
            if self.device.type == "cpu":
                if self._scratch is None:
                    self._scratch = native.make_scratch(BLOCK)
                scratch = self._scratch
                drained = native.drain(block.rows[:used], block.histograms, block.totals, scratch)
            else:
                histograms = _copied(block.histograms[:used])
                block.totals += block.histograms
                block.histograms.zero_()
        block.rows.copy_(block.blank)

        def read() -> tuple[NDArray[np.float64], Histograms | None]:
            numbers: NDArray[np.float64] = rows.numpy()
            found = drained
            if histograms is not None:
                found = native.drain(rows, histograms, torch.zeros_like(histograms))
            if found is None:
                return numbers, None
            return numbers, Histograms(*found, numbers[:, NUM_COUNTED] < numbers[:, NUM_FINITE])

        return read


def _counters(device: torch.device) -> Tensor:
    if device.type == "cpu":
        # Memory that nobody touches costs nothing when it comes from calloc.
        return torch.from_numpy(np.zeros((BLOCK, NUM_BINS), dtype=np.int64))
    return torch.zeros(BLOCK, NUM_BINS, dtype=torch.int64, device=device)


def _copied(tensor: Tensor) -> Tensor:
    """A copy on the host, which on CUDA is under way when this returns."""
    is_cuda = tensor.device.type == "cuda"
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_cuda)
    return host.copy_(tensor, non_blocking=is_cuda)
