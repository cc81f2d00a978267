"""Calls the native kernel (``kernel.c``): one pass over a CPU tensor, and no copy of it.

A row is ``float64[16]`` as in :mod:`torchtap.stats.statistics`, a histogram ``int64[8192]`` as in
:mod:`torchtap.stats.histogram`; what is measured is merged into what they hold. Without the binary
(nothing to compile with when torchtap was installed) importing works and :func:`available` says no.

Everything is summed in float64. ``sum_squares`` and ``m2`` of float64
tensors are infinite only where they exceed float64's range themselves. int64 beyond 2^53 is rounded
to float64 first. float64 and wide integers are put into the bin of their float32 rounded towards
zero; what is beyond float32's range is counted with its largest values, what is below its smallest
subnormal with its smallest.
"""

from __future__ import annotations

import os
import warnings
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_INTERFACE = 5
"""The binary has the same number, from ``calls.h``, or it was built from other sources."""
_STALE = (
    "torchtap's native kernel was built from other sources, and stock operations measure instead, "
    "which takes longer. Build again: python -m pip install --no-build-isolation --editable ."
)

try:
    from torchtap.stats.kernels import _kernel
except ImportError:
    _available = False
else:
    _available = getattr(_kernel, "INTERFACE", 0) == _INTERFACE
    if not _available:  # Of a checkout that was built before.
        warnings.warn(_STALE, RuntimeWarning, stacklevel=2)

DTYPES: dict[torch.dtype, int] = {
    torch.float32: 0,
    torch.float64: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
    torch.uint8: 4,
    torch.int8: 5,
    torch.int16: 6,
    torch.int32: 7,
    torch.int64: 8,
    torch.bool: 9,
}
"""Dtypes that the kernel reads, and its codes."""
FLOATS = {dtype: code for dtype, code in DTYPES.items() if dtype.is_floating_point}
"""Dtypes of floating-point numbers."""
NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in DTYPES}

Scratch = tuple[NDArray[np.uint16], NDArray[np.int64]]
Counts = NDArray[np.uint16] | NDArray[np.int64]
Drained = tuple[NDArray[np.uint16], Counts, NDArray[np.int64]]
"""Bins that hold anything, their counts, one list after the other, and where each list ends."""

_BINS = 8192
_ROW_BYTES = 128
_NO_ROW = -1
_NUM_COUNTED = 14
_LARGE = 1 << 21
"""Elements from which a second thread is worth starting: each takes 2^20 of them or more."""


def available() -> bool:
    """Return whether the binary is there."""
    return _available


def closes_tables() -> bool:
    """Return whether the binary empties tables as a step closes: one that is older does not."""
    return _available and hasattr(_kernel, "Table")


def follows_models() -> bool:
    """Return whether the binary follows the calls of a model itself: one that is older does not."""
    return _available and hasattr(_kernel, "enter_model")


_SWITCH = "TORCHTAP_NATIVE"
_encoded: Any = getattr(os.environ, "_data", os.environ)
"""The environment as ``os`` keeps it. A watch asks ten times as it is opened; ``os.environ`` makes
bytes of the name each time and text of the answer."""
_switch: Any = _SWITCH if _encoded is os.environ else os.environ.encodekey(_SWITCH)


def takes_calls() -> bool:
    """Return whether plain calls are taken natively (``calls.c``): unless ``TORCHTAP_NATIVE=0``."""
    return _can_read_tensors and _encoded.get(_switch) not in (b"0", "0")


_exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)
"""The table of C functions that a class of tensors has, from torch 2.11 on."""


def _bind_tensors() -> bool:
    if not _available or _exchange is None:
        return False
    parts = Tensor, torch.nn.Parameter, Tensor.is_neg, torch.get_num_threads
    return _kernel.bind_tensors(_exchange, *parts)


_can_read_tensors = _bind_tensors()


def kernel() -> Any:
    """Return the binary, which :func:`takes_calls` says is there."""
    return _kernel


def takes_saved(*parts: object) -> bool:
    """Return whether saved tensors are moved natively (``saved.c``), once it was handed its parts.

    Args:
        parts: functions and classes, in the order of ``BOUND`` there, after the two classes.
    """
    if not takes_calls() or not hasattr(_kernel, "bind_saved"):
        return False
    return _kernel.bind_saved(_exchange, Tensor, torch.nn.Parameter, *parts)


Begun = tuple[int, int, int, bytearray | None, int]
"""Row of the table, dtype code, the list that holds the histogram of the last tensor, sums over
samples (``float64``, ``None`` for none), and how many samples are in them."""


def let_begin(clock: Any, rows: TableBlocks | None, sample: int) -> None:
    """Let the meters of a native clock take rows for plain first tensors themselves.

    Args:
        clock: of the sink.
        rows: of its table on the CPU.
        sample: see :func:`accumulate`.
    """
    if rows is not None and hasattr(clock, "table"):
        clock.table, clock.sample = rows.table, sample


def begun_by(meter: object) -> Begun | None:
    """Return what a meter has noted that began by itself, until it is aimed elsewhere."""
    begun: Begun | None = getattr(meter, "begun", None)
    return begun


def new_clock(lock: object) -> _kernel.Clock:
    """Make the clock that native meters of one sink share."""
    return _kernel.Clock(lock)


def new_meter(clock: object, replaces: bool) -> _kernel.Meter:
    """Make a native meter of a native clock."""
    return _kernel.Meter(clock, replaces)  # type: ignore[arg-type]


def new_meters(clock: object, kinds: Iterable[tuple[bool, bool]]) -> list[_kernel.Meter] | None:
    """Make native meters of the first places, each of whether it replaces and whether it sums."""
    if not hasattr(_kernel, "new_meters"):
        return None  # Or the binary is an older one.
    return _kernel.new_meters(clock, 0, bytes(replaces + 2 * sums for replaces, sums in kinds))


def _missing(*arguments: int) -> None:
    raise NotImplementedError("torchtap was installed without its native kernel.")


accumulate_address: Callable[[int, int, int, int, int, int, int], None]
"""``(data, numel, dtype code, row, histogram or 0, sample or 0, threads)``, all addresses."""
take_address: Callable[[int, int, int, int, int], None]
"""``(data, numel, dtype code, aim, threads)``, all addresses; see :class:`KernelArgs`."""
replace_address: Callable[[int, int, int, int, int], None]
"""Arguments of ``take_address``; the tensor replaces the last one, which is forgotten."""
look_address: Callable[[int, int, int], bool] | None = None
"""``(table, count, threads)``: see :func:`are_finite`. A binary that is older has none."""
if _available:
    look_address = getattr(_kernel, "are_finite", None)
    accumulate_address = _kernel.accumulate
    take_address, replace_address = _kernel.take, _kernel.replace
else:
    accumulate_address = take_address = replace_address = _missing


class SparseLog:
    """Takes the histograms of small tensors, as lists of bins and counts.

    Written one after the other as tensors are measured, and read once: a histogram of all bins
    would have to be fetched from far away to be added to, and again to be emptied. A list that
    finds no room goes into such a histogram all the same.

    Attributes:
        address: what the kernel is given.
    """

    __slots__ = ("_bins", "_header", "_lists", "address")

    def __init__(self, max_bins: int, max_lists: int) -> None:
        # Of bins: which one, and its count. Of lists: where it ends, and whose it is.
        self._bins = np.empty((2, max_bins), dtype=np.uint16)
        self._lists = np.empty((2, max_lists), dtype=np.int64)
        addresses = [part.ctypes.data for part in (*self._bins, *self._lists)]
        self._header = np.array([max_bins, max_lists, 0, 0, *addresses, 0])
        self.address = int(self._header.ctypes.data)

    def read_first(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Copy the first list: its bins in their order, and the count of each."""
        length = self._lists[0, 0]
        bins, counts = self._bins[:, :length].astype(np.int64)
        return bins, counts

    def clear(self) -> None:
        """Start again with no list."""
        self._header[2:4] = self._header[-1] = 0

    def forget(self, owner: int) -> None:
        """Drop everything that was listed of an owner."""
        owners = self._lists[1, : self._header[3]]
        is_old = owners == owner
        # The bins stay where they are: moving what lies behind them would cost more than to skip
        # them once.
        owners[is_old] = _NO_ROW
        self._header[-1] += is_old.sum()


class Listed(NamedTuple):
    """Histograms of a step, as lists of bins and counts, one after the other.

    Attributes:
        drained: as of :func:`drain`.
        places: whose each is.
        are_samples: whether each counts a sample.
    """

    drained: Drained
    places: NDArray[np.int64]
    are_samples: NDArray[np.bool_]


class TableBlocks:
    """Holds the rows of a table on the CPU (``rows.c``): blocks, and whose rows they are.

    Args:
        new_block: has a block added, where there is no room for another row.
        block_size: rows of a block.

    Attributes:
        table: gives rows out, also to native meters.
    """

    __slots__ = ("table",)

    def __init__(self, new_block: Callable[[], object], block_size: int) -> None:
        self.table = _kernel.Table(new_block, block_size)

    def add_block(
        self,
        rows: NDArray[np.float64],
        histograms: NDArray[np.int64] | None,
        lists: SparseLog | None,
    ) -> None:
        """Add a block of which no row is used yet."""
        places = np.zeros(len(rows), dtype=np.int64)
        wanted = 0 if histograms is None else histograms.ctypes.data
        room = 0 if lists is None else lists.address
        # The kernel has addresses alone, so the table keeps the memory alive.
        memory = rows, histograms, lists, places
        self.table.add_block(rows.ctypes.data, wanted, room, places.ctypes.data, memory)

    def add_row(self, place: int) -> int:
        """Use another row, for what is at this place of a step; return which of the table it is."""
        return self.table.add_row(place)

    def close(self, into: list[Any]) -> None:
        """Append what was measured to a list, and begin again with blank rows and no histogram.

        Nothing comes in between, no interrupt either. Where nothing was measured, as when it is
        called again, nothing is appended. :func:`read_closed` reads it.
        """
        self.table.close(into)


def read_closed(closed: list[Any]) -> tuple[NDArray[np.float64], list[Listed]]:
    """Return the rows of a step by place, and its histograms, of what ``TableBlocks`` closed."""
    if not closed:
        return np.zeros((0, 16)), []
    rows, *listed = closed[0]
    found = []
    for counts, (num_lists, num_bins, data) in ((np.uint16, listed[:3]), (np.int64, listed[3:])):
        if num_lists:
            found.append(_read_listed(num_lists, num_bins, data, counts))
    return np.frombuffer(rows).reshape(-1, 16), found


def _read_listed(num_lists: int, num_bins: int, data: bytes, counted_as: Any) -> Listed:
    """Read what ``Table.close`` made of histograms, whose counts are of one of two types."""
    numbers = np.frombuffer(data, np.int64, 2 * num_lists)
    counts = np.frombuffer(data, counted_as, num_bins, 16 * num_lists)
    at = 16 * num_lists + counts.nbytes
    bins = np.frombuffer(data, np.uint16, num_bins, at)
    are_samples = np.frombuffer(data, np.bool_, num_lists, at + 2 * num_bins)
    return Listed((bins, counts, numbers[:num_lists]), numbers[num_lists:], are_samples)


class KernelArgs:
    """Holds the kernel's arguments to measure the tensors of one site.

    Args:
        row: ``float64[16]``, or several.
        histogram: ``int64[8192]``, or several, or ``None``.
        sample: see :func:`accumulate`.
        lists: takes histograms while there is room.
        owner: whose they are.
        index: which of several rows and histograms.

    Attributes:
        address: what the kernel is given.
    """

    __slots__ = ("_fields", "_held", "_sliced", "_summed", "address")

    def __init__(
        self,
        row: Tensor,
        histogram: Tensor | None,
        sample: int,
        lists: SparseLog | None,
        owner: int,
        index: int = 0,
    ) -> None:
        # The kernel has addresses alone, so this keeps the memory alive.
        self._held = row, histogram, lists
        at = row.data_ptr() + index * _ROW_BYTES
        wanted = 0 if histogram is None else histogram.data_ptr() + index * _BINS * 8
        room = 0 if lists is None else lists.address
        self._fields = array("q", (at, wanted, sample, room, owner, 0, 0, 0, 0, 0, 0))
        self.address = self._fields.buffer_info()[0]

    @property
    def sample(self) -> int:
        """Elements that the histogram counts, 0 for all."""
        return self._fields[2]

    @sample.setter
    def sample(self, wanted: int) -> None:
        self._fields[2] = wanted

    def go_on_after(self, last_list: int) -> None:
        """Go on after a tensor whose histogram is in that list."""
        self._fields[8] = last_list

    def sum_into(self, sums: Tensor | None, num_samples: array[int] | None) -> None:
        """Add samples to ``sums``, and their number to ``num_samples``, or do not any more."""
        self._summed = sums, num_samples
        if sums is None or num_samples is None:
            summed = 0, 0, 0
        else:
            summed = sums.data_ptr(), sums.numel(), num_samples.buffer_info()[0]
        self._fields[5:8] = array("q", summed)

    def slice_into(self, slices: Sequence[SliceRows]) -> None:
        """Measure slices of each tensor too, along some dims."""
        table = np.array([[one.rows.ctypes.data, len(one.rows), one.inner] for one in slices])
        self._sliced = slices, table
        self._fields[9:11] = array("q", (table.ctypes.data, len(slices)))


class SliceRows(NamedTuple):
    """Rows of the slices of a tensor along one dim.

    Attributes:
        rows: ``float64[slices, 16]``.
        inner: how many elements of a slice lie together.
    """

    rows: NDArray[np.float64]
    inner: int


def merge_rows(rows: NDArray[np.float64], others: NDArray[np.float64]) -> None:
    """Merge rows, each into the one at its place; all without gaps."""
    _kernel.merge_rows(rows.ctypes.data, others.ctypes.data, len(others))


def accumulate(
    tensor: Tensor, row: Tensor, histogram: Tensor | None = None, sample: int = 0
) -> None:
    """Measure a tensor and merge it into a row.

    Args:
        tensor: of any shape and strides, on the CPU, of a dtype in :data:`DTYPES`.
        row: ``float64[16]``, contiguous.
        histogram: ``int64[8192]``, contiguous, or ``None``.
        sample: how many elements to count in the histogram, one in each of so many equal parts at
            a hashed place; 0 for all. A tensor of at most twice as many is counted
            completely, which takes less time. Successive tensors of a row are sampled in
            different places; the same ones in the same order always give the same counts.

    Example:
        >>> import torch
        >>> row = torch.zeros(16, dtype=torch.float64)
        >>> row[6], row[7] = torch.inf, -torch.inf
        >>> if available():
        ...     accumulate(torch.tensor([3.0, -4.0, torch.nan]), row)
        ...     assert row[[0, 1, 5, 9]].tolist() == [3, 2, 25, 1]
    """
    tensor = without_gaps(tensor)
    numel = tensor.numel()
    accumulate_address(
        tensor.data_ptr(),
        numel,
        DTYPES[tensor.dtype],
        row.data_ptr(),
        0 if histogram is None else histogram.data_ptr(),
        sample,
        1 if numel < _LARGE else torch.get_num_threads(),
    )


def accumulate_channels(tensor: Tensor, rows: Tensor) -> None:
    """Measure each slice along the middle dim of ``[outer, channels, inner]``.

    Args:
        tensor: three dims, on the CPU, of a dtype in :data:`DTYPES`.
        rows: ``float64[channels, 16]``, contiguous; slices are merged into them.
    """
    tensor = tensor.resolve_neg().contiguous()
    outer, channels, inner = tensor.shape
    threads = 1 if tensor.numel() < _LARGE else torch.get_num_threads()
    code = DTYPES[tensor.dtype]
    _kernel.accumulate_channels(
        tensor.data_ptr(), outer, channels, inner, code, rows.data_ptr(), threads
    )


def are_finite(tensors: Iterable[Tensor], others: list[Tensor]) -> bool:
    """Return whether no element is an Inf or a NaN. Nothing is computed: it costs reading them.

    Args:
        tensors: any. Those on the CPU that are strided, without gaps, of a floating-point dtype in
            :data:`DTYPES` and no subclass of ``Tensor`` are looked at.
        others: takes all others.

    Example:
        >>> import torch
        >>> others = []
        >>> if available():
        ...     assert are_finite([torch.ones(3), torch.full((3,), 3e38)], others)
        ...     assert not are_finite([torch.ones(3), torch.tensor([0, -torch.inf])], others)
        >>> others
        []
    """
    if look_address is None:
        others += tensors
        return True
    table = array("q")
    num_read = 0
    for one in tensors:
        code = FLOATS.get(one.dtype, -1)
        if code < 0 or not _lies_ready(one):
            others.append(one)
            continue
        address, size = one.data_ptr(), one.numel()
        if address:
            num_read += size
            table.extend((address, size, code))
        elif size:  # Zeros that take no memory.
            others.append(one)
    threads = 1 if num_read < _LARGE else torch.get_num_threads()
    return look_address(table.buffer_info()[0], len(table) // 3, threads)


def _lies_ready(tensor: Tensor) -> bool:
    """Return whether the numbers of a tensor are in the memory of the CPU, one after the other."""
    if type(tensor) is not Tensor or not tensor.is_cpu or tensor.layout is not torch.strided:
        return False
    return not tensor.is_nested and (tensor.is_contiguous() or fills_its_memory(tensor))


def agreement(
    outputs: Tensor,
    gradients: Tensor,
    shape: tuple[int, int],
    factor: float | None,
    classes: Tensor | None,
) -> tuple[float | None, float, float] | None:
    """Return the correlation of outputs and targets, and the lowest and the highest target.

    See ``capture/target_agreement.py``. ``None`` where the kernel does not read these tensors, or
    their gradient does not tell a class of each row.

    Args:
        outputs: of a model.
        gradients: of a loss, at the outputs.
        shape: how many rows and columns both are read as.
        factor: by which a gradient gives the error, of a squared one.
        classes: takes the classes, ``int64[rows]``, where there is no factor.
    """
    if not _available or not _are_in_order(outputs) or not _are_in_order(gradients):
        return None
    addresses = outputs.data_ptr(), gradients.data_ptr()
    if not all(addresses):
        return None
    place = 0 if classes is None else classes.data_ptr()
    return _kernel.agreement(*addresses, *shape, factor or 0.0, place)


def _are_in_order(numbers: Tensor) -> bool:
    """Return whether these are float32, one after the other in the order of their places."""
    is_float = numbers.dtype is torch.float32 and not numbers.is_neg()
    return is_float and _lies_ready(numbers) and numbers.is_contiguous()


def drain(rows: Tensor, histograms: Tensor, scratch: Scratch | None = None) -> Drained:
    """Take the counts out of many histograms.

    Args:
        rows: ``float64[rows, 16]``; what counted nothing is skipped.
        histograms: ``int64[rows, 8192]``; the binary leaves them empty, Python leaves them as they
            are, to be emptied with their rows.
        scratch: room for the bins and counts of all rows, from :func:`make_scratch`; memory that
            is new every time costs more than what is written into it.

    Returns:
        bins that hold anything, ``uint16[n]``, their counts, ``int64[n]``, one row after the
        other, and where each row ends, ``int64[rows]``.
    """
    num_rows = len(rows)
    ends = np.zeros(num_rows, dtype=np.int64)
    if not _available:
        return _drain(rows, histograms, ends)
    bins, counts = make_scratch(num_rows) if scratch is None else scratch
    length = _kernel.drain(
        rows.data_ptr(),
        histograms.data_ptr(),
        num_rows,
        bins.ctypes.data,
        counts.ctypes.data,
        ends.ctypes.data,
    )
    return bins[:length].copy(), counts[:length].copy(), ends


def make_scratch(num_rows: int) -> Scratch:
    """Make room for the bins and counts of so many rows."""
    size = num_rows * _BINS
    return np.empty(size, dtype=np.uint16), np.empty(size, dtype=np.int64)


def addresses_in(
    blocks: Sequence[NDArray[np.int64]], places: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the addresses of full histograms; arguments of :func:`add_lists`."""
    which, rows = np.divmod(places, len(blocks[0]))
    starts = np.array([block.ctypes.data for block in blocks])
    addresses: NDArray[np.int64] = starts[which] + rows * blocks[0].strides[0]
    return addresses


def add_lists(
    drained: Drained,
    blocks: Sequence[NDArray[np.int64]],
    places: NDArray[np.int64],
    addresses: NDArray[np.int64] | None = None,
) -> None:
    """Add lists of bins and counts to full histograms.

    Args:
        drained: the lists.
        blocks: the histograms, ``int64[n, 8192]`` each with the same ``n``, one after the other.
        places: which of them each list is added to.
        addresses: of these, where they are known.
    """
    bins, counts, ends = drained
    if not len(places):
        return
    if closes_tables():
        if addresses is None:
            addresses = addresses_in(blocks, places)
        _kernel.add_lists(bins, counts, ends, addresses)
        return
    which, rows = np.divmod(places, len(blocks[0]))
    lists = zip(which.tolist(), rows.tolist(), pairwise((0, *ends)), strict=True)
    for block, row, (start, end) in lists:
        blocks[block][row][bins[start:end]] += counts[start:end]


def _drain(rows: Tensor, histograms: Tensor, ends: NDArray[np.int64]) -> Drained:
    places = np.flatnonzero(rows[:, _NUM_COUNTED].numpy())
    full = histograms.numpy()[places]
    which, bins = np.nonzero(full)
    lengths = np.zeros_like(ends)
    lengths[places] = np.bincount(which, minlength=len(places))
    ends[:] = np.cumsum(lengths)
    return bins.astype(np.uint16), full[which, bins], ends


def without_gaps(tensor: Tensor) -> Tensor:
    """Return the elements without gaps or repetition, in any order: copied only where needed."""
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if tensor.is_contiguous() or fills_its_memory(tensor):
        return tensor
    return tensor.contiguous()


def fills_its_memory(tensor: Tensor) -> bool:
    """Return whether elements follow each other in memory in some order of the dims."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
