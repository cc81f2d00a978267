"""Measures the tensors of one site, as quickly as can be."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import Parameter

from torchtap.core.distributed import DEQUANTIZED
from torchtap.core.site import Site
from torchtap.stats.algebra import States
from torchtap.stats.catalogue.protocol import OfSlices
from torchtap.stats.catalogue.results import Missing
from torchtap.stats.kept_steps import RecentSteps
from torchtap.stats.kernels import native
from torchtap.stats.kernels.device_table import Block
from torchtap.stats.rows import BLANK_ROW, NUM_TENSORS, blank_rows

_PLAIN = (Tensor, Parameter)
DTYPE_OF = {code: dtype for dtype, code in native.DTYPES.items()}
"""Dtypes by the codes of the kernel."""
_LARGE = 1 << 21
"""Elements from which on several threads measure one tensor."""


class Clock:
    """Holds what all meters of a sink share: the running step, and a lock.

    Args:
        lock: of the series.

    Attributes:
        step: the running step.
        has_measured: whether anything was measured since the tables were taken.
        lock: held while measuring.
        begin: has the meter of a place measure tensors like its first one; native meters call it.
    """

    __slots__ = ("begin", "has_measured", "lock", "step")

    def __init__(self, lock: threading.RLock) -> None:
        self.begin: Callable[[int, Tensor], bool] | None = None
        self.step = 0
        self.has_measured = False
        self.lock = lock


def new_clock(lock: threading.RLock) -> Clock:
    """Make the clock of a sink, the native one where plain calls are taken natively."""
    if native.takes_calls():
        return cast(Clock, native.new_clock(lock))
    return Clock(lock)


class MeterKind(NamedTuple):
    """The kind of a meter, which the port of its site decides.

    Attributes:
        replaces: whether a new value takes the place of the old one.
        sums: whether samples are summed, if the meter begins by itself.
    """

    replaces: bool
    sums: bool


def new_quick_meter(clock: Clock, place: int, kind: MeterKind) -> QuickMeter:
    """Make a meter of the same kind as the clock, for the site at a place."""
    if type(clock) is Clock:
        return QuickMeter(clock, kind.replaces)
    meter = native.new_meter(clock, kind.replaces)
    if hasattr(clock, "begin"):  # Else the binary is an older one.
        meter.place = place
    if hasattr(clock, "table"):
        meter.sums_samples = kind.sums
    return cast(QuickMeter, meter)


def new_quick_meters(clock: Clock, kinds: Sequence[MeterKind]) -> list[QuickMeter]:
    """Make meters for the first sites of a sink, one of each kind."""
    meters = None if type(clock) is Clock else native.new_meters(clock, kinds)
    if meters is not None:
        return cast(list[QuickMeter], meters)
    return [new_quick_meter(clock, place, kind) for place, kind in enumerate(kinds)]


class Sums:
    """Sums the samples of one site.

    Attributes:
        shape: of a sample.
        total: the sum, ``float64``.
        num_samples: how many there are in it, one number of 8 bytes.
    """

    __slots__ = ("num_samples", "shape", "total")

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tensor.shape[1:]
        self.total = torch.zeros(self.shape, dtype=torch.float64, device=tensor.device)
        # Laid out as the samples are, so that both are read from end to end.
        if is_dense(tensor) and self.total.stride() != tensor.stride()[1:]:
            self.total = self.total.new_empty_strided(self.shape, tensor.stride()[1:]).zero_()
        self.num_samples = array("q", (0,))  # A tensor takes ten times as long to make.

    @classmethod
    def made_natively(cls, numbers: bytearray, shape: tuple[int, ...], num_samples: int) -> Sums:
        """Go on with what a native meter has summed, ``float64``, in the same memory."""
        made = cls.__new__(cls)
        made.shape = torch.Size(shape)
        made.total = torch.frombuffer(numbers, dtype=torch.float64).view(shape)
        made.num_samples = array("q", (num_samples,))
        return made

    def add(self, values: Tensor, notes: Collection[str]) -> str | None:
        """Add the samples of a tensor, or return why there is no sum with them."""
        if set(notes) - {DEQUANTIZED}:  # Magnitudes, stored values: not what would be averaged.
            return f"it is measured {', '.join(notes)}; keep the values instead, with tt.Memory()"
        if values.shape[1:] != self.shape:
            return f"its samples differ in shape, {list(self.shape)} and {list(values.shape[1:])}"
        self.num_samples[0] += values.shape[0] if values.dim() else 1
        total = values.sum(0, dtype=torch.float64) if values.dim() else values
        self.total += total.to(self.total.device)
        return None


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is one of ordinary numbers on the CPU, with its elements in memory.

    Nothing has to be said of such a tensor, and nothing made of it before it is measured.
    """
    return (
        type(tensor) in _PLAIN
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.dtype in native.FLOATS
    )


def is_dense(tensor: Tensor) -> bool:
    """Return whether samples lie one after another in memory, each dense in any dim order."""
    if tensor.layout is not torch.strided or not tensor.dim():
        return False
    return tensor.stride(0) == tensor.shape[1:].numel() and (
        tensor.is_contiguous() or native.fills_its_memory(tensor)
    )


class SliceMeter:
    """Holds rows of the slices of one site's tensors, which the kernel fills beside its row.

    Args:
        statistics: the further ones of the sink, in their order: of slices all of those that the
            site has, and reasons in place of the others.
    """

    __slots__ = ("_statistics", "rows")

    def __init__(self, statistics: Sequence[OfSlices | Missing]) -> None:
        self._statistics = statistics
        self.rows: list[native.SliceRows] = []

    def fit(self, tensor: Tensor) -> bool:
        """Make room for the slices of tensors like this one, or return ``False``."""
        asked = [one for one in self._statistics if not isinstance(one, Missing)]
        cuts = [one.cut(tensor) for one in asked]
        fitting = [cut for cut in cuts if cut is not None and cut[0] * cut[1]]
        self.rows = [native.SliceRows(blank_rows(count), inner) for count, inner in fitting]
        return len(fitting) == len(asked)

    def take(self) -> States | None:
        """Return what was measured into the rows as states, if anything was, and clear them."""
        if not self.rows or not self.rows[0].rows[0, NUM_TENSORS]:
            return None
        rows = iter([one.rows.copy() for one in self.rows])
        states = [
            one if isinstance(one, Missing) else one.of_rows(next(rows)) for one in self._statistics
        ]
        for one in self.rows:
            one.rows[:] = BLANK_ROW
        return states


class QuickMeter:
    """Measures tensors of a site that are like the last one, into its row.

    Called with a tensor and its step: measures it and says so, or says that this takes more care
    than it takes (another dtype or device, strides, a step that was closed). The native one does
    the same (``calls.c``).

    Attributes:
        shape: of the last tensor; ``None`` of a nested one.
        varies: whether shapes differ.
    """

    __slots__ = (
        "_address",
        "_clock",
        "_code",
        "_dtype",
        "_is_summed_in_order",
        "_measure",
        "_sample",
        "_strides",
        "shape",
        "varies",
    )

    def __init__(self, clock: Clock, replaces: bool) -> None:
        self._clock = clock
        self._measure = native.replace_address if replaces else native.take_address
        self._dtype: torch.dtype | None = None
        self._code = self._address = 0
        self._sample: tuple[int, ...] | None = None
        self._strides: tuple[int, ...] | None = None
        self._is_summed_in_order = True
        self.shape: tuple[int, ...] | None = None
        self.varies = False

    def aim(self, address: int, sample: tuple[int, ...] | None) -> None:
        """Measure into the kernel's arguments at an address.

        Args:
            address: a third of the time of anything else.
            sample: shape of a sample, where samples are summed.
        """
        self._address, self._sample = address, sample

    def trust(self, code: int, strides: tuple[int, ...] | None, is_summed_in_order: bool) -> None:
        """Measure tensors of a dtype from now on.

        Args:
            code: of the dtype, see :data:`native.DTYPES`.
            strides: with which a tensor need not be contiguous.
            is_summed_in_order: whether contiguous ones can be summed.
        """
        self._dtype, self._code = DTYPE_OF[code], code
        self._strides, self._is_summed_in_order = strides, is_summed_in_order

    def distrust(self) -> None:
        """Measure none from now on."""
        self._dtype = None

    def _lies_as_before(self, tensor: Tensor) -> bool:
        """Return whether it can be read from end to end as it lies, for sums over samples too."""
        known = self.shape
        return (
            tensor.stride() == self._strides and known is not None and tensor.shape[1:] == known[1:]
        )

    def __call__(self, tensor: Tensor, step: int) -> bool:
        """Measure ``tensor``, or return ``False``."""
        clock = self._clock
        try:
            if (
                tensor.dtype is not self._dtype
                or step != clock.step
                or ((kind := type(tensor)) is not Tensor and kind is not Parameter)
                or not tensor.is_cpu
                or not (
                    (self._is_summed_in_order and tensor.is_contiguous())
                    or self._lies_as_before(tensor)
                )
                or tensor.is_neg()
            ):
                return False
            # Inside the ``try``: some kinds raise only when they are asked for their memory.
            shape, data = tensor.shape, tensor.data_ptr()
        except RuntimeError:  # Nested, sparse and mkldnn tensors of the same type and dtype.
            return False
        numel = shape.numel()
        if numel and not data:  # Freed, or zeros that autograd keeps nowhere.
            return False
        if shape != self.shape:
            if self._sample is not None and shape[1:] != self._sample:
                return False
            self.shape, self.varies = shape, True
        # Below that, waking threads takes longer than reading the memory.
        threads = 1 if numel < _LARGE else torch.get_num_threads()
        # Backward of another device runs in other threads; the kernel writes into one row.
        with clock.lock:
            # Another thread brought another dtype meanwhile, or ended the step.
            if tensor.dtype is not self._dtype or step != clock.step:
                return False
            clock.has_measured = True
            self._measure(data, numel, self._code, self._address, threads)
        return True


class Meter:
    """Measures the tensors of one site, and knows its row.

    Attributes:
        place: of the site in the series.
        block: rows on the device of its tensors, and the ``index`` of its row there.
        is_replaced: whether a new value takes the place of the old one within a step. The
            last value in ``.grad`` holds the whole sum; the partial sums do not count.
        quick: measures what is like the last tensor.
        slices: of them, where that is all that is wanted beside the row.
    """

    __slots__ = (
        "_aim",
        "_sample",
        "_sums",
        "block",
        "index",
        "is_replaced",
        "place",
        "quick",
        "slices",
    )

    def __init__(
        self,
        site: Site,
        place: int,
        quick: QuickMeter,
        sample: int,
        of_slices: Sequence[OfSlices | Missing],
    ) -> None:
        self.place = place
        self.slices = SliceMeter(of_slices) if of_slices and native.available() else None
        self.is_replaced = site.kind.is_replaced
        self.block: Block | None = None
        self.index = -1
        self.quick = quick
        self._sample = sample
        self._sums: Sums | None = None
        self._aim: native.KernelArgs | None = None

    def measure_into(self, block: Block, index: int) -> None:
        """Take a row."""
        self.block, self.index = block, index
        self._aim = block.aim(index, self._sample)
        if self._sums is not None:
            self.sums = self._sums  # Those of another device.
        else:
            self.quick.aim(self._aim.address, None)

    def begin(self, block: Block, index: int, tensor: Tensor, *, sums: bool) -> None:
        """Take a row, and measure tensors like the first one, which is plain, from now on.

        Args:
            block: of the row.
            index: of the row in its block.
            tensor: the first one.
            sums: whether to sum samples too.
        """
        self.block, self.index = block, index
        self._aim = aim = block.aim(index, self._sample)
        self.quick.shape = tuple(tensor.shape)
        if sums:
            self._sums = made = Sums(tensor)
            aim.sum_into(made.total, made.num_samples)
        self.quick.aim(aim.address, self.quick.shape[1:] if sums else None)
        self.trust(tensor)

    def go_on(self, begun: native.Begun, block: Block, index: int) -> None:
        """Go on where the native meter has begun by itself.

        Args:
            begun: as :attr:`quick` has it.
            block: of its row.
            index: of the row in its block.
        """
        _, _, last_list, sums, num_samples = begun
        shape = self.quick.shape
        assert shape is not None  # It has measured a tensor.
        self.block, self.index = block, index
        self._aim = aim = block.aim(index, self._sample)
        aim.go_on_after(last_list)
        if sums is not None:
            made = Sums.made_natively(sums, shape[1:], num_samples)
            self._sums = made
            aim.sum_into(made.total, made.num_samples)
        self.quick.aim(aim.address, None if sums is None else shape[1:])

    @property
    def sums(self) -> Sums | None:
        """Return the running sum over samples, if there is one."""
        return self._sums

    @sums.setter
    def sums(self, sums: Sums | None) -> None:
        self._sums = sums
        if self._aim is not None:
            self._aim.sum_into(*((None, None) if sums is None else (sums.total, sums.num_samples)))
            self.quick.aim(self._aim.address, None if sums is None else tuple(sums.shape))

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Return the shape of the last tensor."""
        return self.quick.shape

    def note_shape(self, shape: tuple[int, ...] | None, *, is_first: bool) -> None:
        """Note the shape of a tensor that was measured with care."""
        self.quick.varies |= not is_first and self.quick.shape != shape
        self.quick.shape = shape

    def trust(self, tensor: Tensor) -> None:
        """Measure tensors like this one quickly from now on."""
        self.quick.distrust()  # Its row may stand on another device now.
        # Subclasses may keep their numbers elsewhere, so each of their tensors is looked at.
        total = None if self._sums is None else self._sums.total
        is_plain = type(tensor) in _PLAIN and tensor.is_cpu and (total is None or total.is_cpu)
        if is_plain and native.available() and tensor.dtype in native.DTYPES:
            # The kernel adds samples to the sum element by element as they lie, so both must lie
            # alike.
            fits = total is None or total.stride() == tensor.stride()[1:]
            strides = tensor.stride() if fits and is_dense(tensor) else None
            in_order = total is None or total.is_contiguous()
            if self.slices is not None and self._aim is not None:
                if strides is None or not self.slices.fit(tensor):
                    return
                in_order = False  # Slices are found by the strides of this tensor.
                self._aim.slice_into(self.slices.rows)
            self.quick.trust(native.DTYPES[tensor.dtype], strides, in_order)

    def take_slices(self, recent: RecentSteps, step: int) -> None:
        """Hand over what the kernel has measured of slices in a step."""
        states = None if self.slices is None else self.slices.take()
        if states is not None:
            recent.merge_states(step, self.place, states, anew=self.is_replaced)

    def distrust(self) -> None:
        """Measure with care from now on."""
        self.quick.distrust()
