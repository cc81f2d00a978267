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
from torchtap.stats.rows import MAX, MIN, NUM_COUNTED, NUM_FINITE, ROW_WIDTH
from torchtap.stats.statistics import LEANING, Statistics, from_row

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


class PlainTensors:
    """Measures plain tensors together, into one row and one histogram of all bins.

    Making both takes as long as a few tensors do; merging two values takes longer than a tensor.

    Args:
        histogram: also count the histogram.
        sample: elements of each tensor to count in it, 0 for all.
    """

    def __init__(self, *, histogram: bool, sample: int) -> None:
        self._row = _EMPTY.copy()
        self._bins = np.zeros(NUM_BINS, dtype=np.int64) if histogram else None
        bins = 0 if self._bins is None else self._bins.ctypes.data
        self._into = self._row.ctypes.data, bins, sample, 1
        self._dtypes: set[str] = set()
        self._shapes: set[tuple[int, ...]] = set()
        self._nbytes = 0

    def take(self, tensor: Tensor) -> bool:
        """Measure a tensor if it is plain; return whether it is."""
        if not _is_plain(tensor):
            return False
        code = native.DTYPES[tensor.dtype]
        native.accumulate_address(tensor.data_ptr(), tensor.numel(), code, *self._into)
        self._dtypes.add(native.NAMES[tensor.dtype])
        self._shapes.add(tuple(tensor.shape))
        self._nbytes += tensor.nbytes
        return True

    def statistics(self) -> Statistics:
        """Return the statistics of all that were taken, as :meth:`Statistics.merge` has them."""
        if not self._dtypes:
            return Statistics()
        row = self._row.tolist()
        is_sample = row[NUM_COUNTED] < row[NUM_FINITE]
        shape = next(iter(self._shapes)) if len(self._shapes) == 1 else None
        is_leaning = self._bins is not None and is_sample and shape is None
        return from_row(
            row,
            histogram=None if self._bins is None else Histogram.of(self._bins, is_sample=is_sample),
            dtype=next(iter(self._dtypes)) if len(self._dtypes) == 1 else "mixed",
            shape=shape,
            nbytes=self._nbytes,
            notes=(LEANING,) if is_leaning else (),
        )


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
