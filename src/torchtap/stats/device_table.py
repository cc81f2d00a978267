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
from torchtap.stats.histogram import NUM_BINS, Histogram
from torchtap.stats.statistics import NUM_COUNTED, NUM_FINITE, clear_rows, empty_rows

_BLOCK = 256
"""Rows that are made at once."""

Snapshot = Callable[[], tuple[NDArray[np.float64], dict[int, Histogram]]]


class Block:
    """Some rows of a table.

    Attributes:
        rows: ``float64[256, 16]``.
        histograms: ``int64[256, 8192]``, or ``None``.
    """

    __slots__ = ("histograms", "rows")

    def __init__(self, device: torch.device, *, histogram: bool) -> None:
        self.rows = empty_rows(_BLOCK, device)
        self.histograms: Tensor | None = None
        if histogram and device.type == "cpu":
            # Memory that nobody touches costs nothing when it comes from calloc.
            self.histograms = torch.from_numpy(np.zeros((_BLOCK, NUM_BINS), dtype=np.int64))
        elif histogram:
            self.histograms = torch.zeros(_BLOCK, NUM_BINS, dtype=torch.int64, device=device)

    def clear(self, index: int) -> None:
        """Forget what was measured into one row."""
        clear_rows(self.rows[index : index + 1])
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

    def add(self) -> tuple[Block, int]:
        """One more row: its block, and its place there."""
        if self.num_rows == len(self._blocks) * _BLOCK:
            self._blocks.append(Block(self.device, histogram=self._histogram))
        self.num_rows += 1
        return self._blocks[-1], (self.num_rows - 1) % _BLOCK

    def take(self) -> Snapshot:
        """Copy what was measured and start again; call the result to have the copy."""
        if self.device.type == "cpu":
            numbers, histograms = self._take_now()
            return lambda: (numbers, histograms)
        return self._take_later()

    def _take_now(self) -> tuple[NDArray[np.float64], dict[int, Histogram]]:
        parts, histograms = [], {}
        for number, block in enumerate(self._blocks):
            used = min(_BLOCK, self.num_rows - number * _BLOCK)
            rows = block.rows[:used].numpy().copy()
            parts.append(rows)
            for place in np.flatnonzero(rows[:, NUM_COUNTED]) if self._histogram else ():
                assert block.histograms is not None
                is_sample = rows[place, NUM_COUNTED] < rows[place, NUM_FINITE]
                bins, counts = native.drain(block.histograms[int(place)])
                found = Histogram.sparse(bins, counts, bool(is_sample))
                histograms[number * _BLOCK + int(place)] = found
            clear_rows(block.rows[:used])
        return np.concatenate(parts) if parts else np.zeros((0, 16)), histograms

    def _take_later(self) -> Snapshot:
        copies = []
        for number, block in enumerate(self._blocks):
            used = min(_BLOCK, self.num_rows - number * _BLOCK)
            copies.append(_copied(block.rows[:used]))
            if block.histograms is not None:
                copies.append(_copied(block.histograms[:used]))
                block.histograms[:used].zero_()
            clear_rows(block.rows[:used])
        event = torch.Event(self.device.type) if copies else None
        if event is not None:
            event.record()
        per_block = 2 if self._histogram else 1

        def read() -> tuple[NDArray[np.float64], dict[int, Histogram]]:
            if event is not None:
                event.synchronize()
            arrays = [copy.numpy() for copy in copies]
            rows = np.concatenate(arrays[::per_block]) if arrays else np.zeros((0, 16))
            histograms = {}
            if self._histogram and arrays:
                for place, full in enumerate(np.concatenate(arrays[1::2])):
                    if rows[place, NUM_COUNTED]:
                        is_sample = bool(rows[place, NUM_COUNTED] < rows[place, NUM_FINITE])
                        histograms[place] = Histogram.of(full, is_sample=is_sample)
            return rows, histograms

        return read


def _copied(tensor: Tensor) -> Tensor:
    """A copy on the host that is under way when this returns."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
    return host.copy_(tensor, non_blocking=tensor.device.type == "cuda")
