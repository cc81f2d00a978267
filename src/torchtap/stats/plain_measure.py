"""Measures one plain CPU tensor by the kernel, with buffers that each thread has once.

A small tensor takes the kernel less than a microsecond. Making a row, a histogram of all bins and
the contexts that operations of PyTorch need would take a hundred times as long; here no operation
runs, and the kernel lists the bins that it met.
"""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from torchtap.core.torch_private import is_of_transform
from torchtap.stats.histogram import NUM_BINS, Histogram, listed_histogram
from torchtap.stats.kernels import native
from torchtap.stats.statistics import (
    MAX,
    MIN,
    NUM_COUNTED,
    NUM_FINITE,
    ROW_WIDTH,
    Statistics,
    from_row,
)

MOST_LISTED = 65_535
"""Elements of a tensor whose histogram the kernel surely lists: its counts have 16 bits."""
_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def measure_plain(tensor: Tensor, *, histogram: bool, sample: int) -> Statistics | None:
    """Measure a tensor that is just its memory, or return ``None`` where it is anything else.

    Args:
        tensor: of any dtype, layout and device.
        histogram: also count the histogram.
        sample: elements to count in it, 0 for all; see :func:`native.accumulate`.
    """
    if not _is_plain(tensor):
        return None
    buffers = _BUFFERS.of_this_thread()
    row, found = buffers.measured(tensor, histogram=histogram, sample=sample)
    return from_row(
        row,
        histogram=found,
        dtype=native.NAMES[tensor.dtype],
        shape=tuple(tensor.shape),
        nbytes=tensor.nbytes,
    )


def _is_plain(tensor: Tensor) -> bool:
    """Return whether the elements lie one after the other in the tensor's own CPU memory."""
    if (
        type(tensor) not in _PLAIN_TYPES
        or not tensor.is_cpu
        or tensor.dtype not in native.DTYPES
        or tensor.layout is not torch.strided
        or tensor.is_nested  # Its layout may be strided too.
        or is_of_transform(tensor)  # It has no memory, which the rest asks for.
        or not 0 < tensor.numel() <= MOST_LISTED
        or not tensor.is_contiguous()
        or tensor.is_neg()
        # Forward-mode AD makes zeros without memory (torch._efficientzerotensor).
        or tensor._is_zerotensor()
        or not native.available()
    ):
        return False
    storage = tensor.untyped_storage()  # FSDP frees storages under living tensors.
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    return storage.data_ptr() != 0 and storage.nbytes() >= end


class _Buffers:
    """One row, and room for the list of one histogram."""

    __slots__ = ("_counting", "_lists", "_row", "_summing")

    def __init__(self) -> None:
        self._row = np.empty(ROW_WIDTH)
        self._lists = native.SparseLog(NUM_BINS, 1)
        row = torch.from_numpy(self._row)
        unused = torch.zeros(NUM_BINS, dtype=torch.int64)  # All counts go into the list.
        self._counting = native.KernelArgs(row, unused, 0, self._lists, 0)
        self._summing = native.KernelArgs(row, None, 0, None, 0)

    def measured(
        self, tensor: Tensor, *, histogram: bool, sample: int
    ) -> tuple[list[float], Histogram | None]:
        """Return the row of the tensor, and its histogram if it is wanted."""
        self._row[:] = _EMPTY
        numel, code = tensor.numel(), native.DTYPES[tensor.dtype]
        if not histogram:
            native.take_address(tensor.data_ptr(), numel, code, self._summing.address, 1)
            return self._row.tolist(), None
        # Before and not after: an interrupt may have left what another call counted.
        self._lists.clear()
        self._counting.sample = sample
        native.take_address(tensor.data_ptr(), numel, code, self._counting.address, 1)
        row = self._row.tolist()
        bins, counts = self._lists.read_first()
        is_sample = row[NUM_COUNTED] < row[NUM_FINITE]
        return row, listed_histogram(bins, counts, is_sample=is_sample)


class _BuffersOfThreads(threading.local):
    """The buffers of each thread, made when it measures its first plain tensor."""

    _own: _Buffers | None = None

    def of_this_thread(self) -> _Buffers:
        if self._own is None:
            self._own = _Buffers()
        return self._own


_BUFFERS = _BuffersOfThreads()
_EMPTY = np.zeros(ROW_WIDTH)
_EMPTY[MIN], _EMPTY[MAX] = np.inf, -np.inf
