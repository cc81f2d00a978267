"""``tt.Stats``: the sink that measures what flows, and keeps numbers instead of values."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtap.errors import InputError
from torchtap.record import FORWARD, Absence, Record
from torchtap.site import FLOW_PORTS, Site
from torchtap.stats import native
from torchtap.stats.device_table import Block, DeviceTable, Snapshot
from torchtap.stats.measure import (
    SAMPLE,
    accumulate,
    dtype_name,
    no_values,
    real_values,
    table_device,
)
from torchtap.stats.own import Statistic
from torchtap.stats.series import Series
from torchtap.stats.statistics import NUM_TENSORS

_LARGE = 1 << 20
"""Elements from which on several threads measure one tensor."""


class _Slot:
    """Where the tensors of one site are measured into, on one device."""

    __slots__ = (
        "block",
        "code",
        "dtype",
        "histogram",
        "index",
        "is_replaced",
        "numel",
        "place",
        "row",
        "site",
        "sums",
    )

    def __init__(self, site: Site, place: int, block: Block, index: int, tensor: Tensor) -> None:
        self.site = site  # Held, so that its id stays its own.
        self.place = place
        self.block = block
        self.index = index
        self.dtype = tensor.dtype
        self.numel = tensor.numel()
        # The native kernel is called with addresses: a third of the time of the rest.
        self.code = native.DTYPES.get(tensor.dtype, -1) if native.available() else -1
        self.row = block.rows[index].data_ptr()
        self.histogram = 0 if block.histograms is None else block.histograms[index].data_ptr()
        self.sums: _Sums | None = None
        # What accumulates in .grad stands in its last value; the partial sums do not count.
        self.is_replaced = site.port == "param_grad"


class _Sums:
    """The running sum over samples of one site."""

    __slots__ = ("address", "num_samples", "shape", "total")

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tensor.shape[1:]
        self.total = torch.zeros(self.shape, dtype=torch.float64, device=tensor.device)
        self.address = self.total.data_ptr()
        self.num_samples = 0


class Stats:
    """A sink that measures every tensor as it flows, and keeps none.

    Per site and step, over all calls: counts (elements, finite, zero, NaN, +Inf, -Inf, subnormal),
    mean, std, rms, L1, L2, min, max, absmax, a signed-log histogram with quantiles and with the
    shares that would underflow or overflow in a smaller format, and the running mean over samples.
    A tensor is read once. Calls that a checkpoint computes again are not counted.

    Args:
        histogram: count histograms.
        exact: count every element in them. By default tensors of more than 4,096 elements are
            counted by one element in each of 4,096 equal parts, at places that follow no period;
            the standard error of the rank of a quantile is ``sqrt(q (1 - q) / 4096)``, which is
            0.8 % at the median. All other statistics are always over all elements.
        sample_mean: keep the running sum over samples that ``run.mean_norm`` needs: 8 bytes per
            element of one sample and site.
        statistics: more of them, built in (``tt.stats.top_k(5)``) or your own, see
            :class:`~torchtap.stats.Statistic`.
        keep: of how many steps histograms and ``statistics`` are kept. The numbers are kept of
            all steps (128 bytes each), and everything is merged over the whole run too.

    Raises:
        InputError: an argument is of the wrong kind.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> with tt.watch(model, "*:output,grad_output", to=tt.Stats()) as w:
        ...     model(torch.ones(4, 2)).sum().backward()
        >>> w.run.stats("1:grad_output").mean
        1.0
    """

    def __init__(
        self,
        *,
        histogram: bool = True,
        exact: bool = False,
        sample_mean: bool = True,
        statistics: Sequence[Statistic] = (),
        keep: int = 64,
    ) -> None:
        if keep < 1:
            raise InputError(f"keep is {keep}; expected a number of steps from 1.")
        for one in statistics:
            if not isinstance(one, Statistic):
                raise InputError(
                    f"{one!r} is no statistic: expected name, init, update, merge and finish."
                )
        self.series = Series(keep, statistics)
        self.skipped: dict[Absence, None] = {}
        self._histogram = histogram
        self._sample = 0 if exact else SAMPLE
        self._sample_mean = sample_mean
        self._statistics = tuple(statistics)
        self._states: dict[int, list[Any]] = {}
        # By the id of the site, which a spot holds for good: hashing it takes longer than the rest.
        self._slots: dict[int, _Slot] = {}
        self._tables: dict[torch.device, DeviceTable] = {}
        self._places: dict[torch.device, list[int]] = {}
        self._pending: list[tuple[int, list[int], Snapshot]] = []
        self._step = 0
        self._lock = threading.Lock()
        self._threads = torch.get_num_threads()

    # ------------------------------------------------------------------ as a sink

    def take(self, record: Record) -> None:
        """Measure one value."""
        site, step, _, phase, _, _, tensor, _ = record
        slot = self._slots.get(id(site))
        if (
            slot is None
            or step != self._step
            or phase is not FORWARD
            or tensor.dtype is not slot.dtype
            or slot.code < 0
            or not tensor.is_contiguous()
            or type(tensor) is not Tensor
            or tensor.is_neg()
            or slot.is_replaced
            or self._statistics
        ):
            self._take_slowly(record)
            return
        numel = tensor.numel()
        threads = 1 if numel < _LARGE else self._threads
        with self._lock:
            native.accumulate_address(
                tensor.data_ptr(), numel, slot.code, slot.row, slot.histogram, self._sample, threads
            )
            if slot.sums is not None:
                self._add_samples(slot, slot.sums, tensor)
        if numel != slot.numel:
            self._note_shape(slot, tensor)

    def close_step(self, step: int) -> None:
        """The step has ended: copy its numbers, and read those of the step before."""
        with self._lock:
            self._take_tables(step)
            self._hand_over_states(step)
            self._step = step + 1
            while len(self._pending) > len(self._tables):
                self._read_one()

    def close(self) -> None:
        """Nothing more will come."""
        self.flush()

    def read(self) -> Series:
        """What was measured so far, also of the running step."""
        self.flush()
        return self.series

    def flush(self) -> None:
        """Bring ``series`` up to date."""
        with self._lock:
            self._take_tables(self._step)
            while self._pending:
                self._read_one()
            self._hand_over_states(self._step)
            for slot in self._slots.values():
                if slot.sums is not None:
                    measured = self.series.measured[slot.place]
                    measured.mean_sum = slot.sums.total.cpu().numpy().copy()
                    measured.num_samples = slot.sums.num_samples

    # ------------------------------------------------------------------ measuring

    def _take_slowly(self, record: Record) -> None:
        if record.phase is not FORWARD:
            return
        tensor = record.kept
        reason = no_values(tensor)
        if reason is not None:
            self.skipped[Absence(record.site, reason)] = None
            return
        with self._lock, torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
            values, notes = real_values(tensor)
            if record.step != self._step:
                self._change_step(record.step)
            slot = self._slot(record.site, values, tensor, notes)
            histograms = slot.block.histograms
            if slot.is_replaced:
                slot.block.clear(slot.index)
            accumulate(
                values,
                slot.block.rows[slot.index],
                None if histograms is None else histograms[slot.index],
                self._sample,
            )
            if slot.sums is not None:
                self._add_samples(slot, slot.sums, values)
            self._update_states(slot, values)
        self._note_shape(slot, tensor)

    def _change_step(self, step: int) -> None:
        """A gradient of a step that was closed, or records that came without ``close_step``."""
        self._take_tables(self._step)
        self._hand_over_states(self._step)
        self._step = step

    def _slot(self, site: Site, values: Tensor, tensor: Tensor, notes: tuple[str, ...]) -> _Slot:
        slot = self._slots.get(id(site))
        device = table_device(values.device)
        if slot is not None and slot.block.rows.device == device:
            if slot.dtype is not values.dtype:
                slot.code = -1
                self.series.measured[slot.place].dtype = "mixed"
            return slot
        place = self._place(site)
        table = self._tables.get(device)
        if table is None:
            table = self._tables[device] = DeviceTable(device, histogram=self._histogram)
            self._places[device] = []
        block, index = table.add()
        self._places[device].append(place)
        slot = self._slots[id(site)] = _Slot(site, place, block, index, values)
        if self._sample_mean and site.port in FLOW_PORTS:
            slot.sums = _Sums(values)
        measured = self.series.measured[place]
        measured.dtype, measured.shape = dtype_name(tensor), tuple(tensor.shape)
        measured.itemsize, measured.notes = tensor.element_size(), notes
        if notes or type(tensor) is not Tensor:
            slot.code = -1
        return slot

    def _place(self, site: Site) -> int:
        return self.series.place_of(site)

    def _note_shape(self, slot: _Slot, tensor: Tensor) -> None:
        measured = self.series.measured[slot.place]
        if measured.shape != tuple(tensor.shape):
            measured.shape = None

    def _add_samples(self, slot: _Slot, sums: _Sums, values: Tensor) -> None:
        shape = values.shape[1:]
        if shape != sums.shape:
            slot.sums = None
            measured = self.series.measured[slot.place]
            measured.mean_sum = None
            measured.why_no_mean = (
                f"its samples differ in shape, {list(sums.shape)} and {list(shape)}"
            )
            return
        num_samples = values.shape[0] if values.dim() else 1
        sums.num_samples += num_samples
        if slot.code >= 0 and values.is_contiguous():
            inner = sums.total.numel()
            native.accumulate_sum_address(
                values.data_ptr(), num_samples, inner, slot.code, sums.address
            )
        else:
            sums.total += values.sum(0, dtype=torch.float64) if values.dim() else values

    def _update_states(self, slot: _Slot, values: Tensor) -> None:
        if not self._statistics:
            return
        states = self._states.get(slot.place)
        if states is None:
            states = self._states[slot.place] = [one.init() for one in self._statistics]
        for number, one in enumerate(self._statistics):
            states[number] = one.update(states[number], values)

    # ------------------------------------------------------------------ the end of a step

    def _take_tables(self, step: int) -> None:
        for device, table in self._tables.items():
            self._pending.append((step, list(self._places[device]), table.take()))

    def _read_one(self) -> None:
        step, places, snapshot = self._pending.pop(0)
        rows, histograms = snapshot()
        if not len(rows) or not rows[:, NUM_TENSORS].any():
            return
        ordered = np.zeros((len(self.series.measured), rows.shape[1]))
        ordered[places] = rows
        self.series.add_step(step, ordered, {places[row]: h for row, h in histograms.items()})

    def _hand_over_states(self, step: int) -> None:
        """Bring the further statistics into the series, which merges them."""
        if self._states:
            while self._pending:
                self._read_one()
            self.series.add_states(step, self._states)
            self._states = {}

    def __repr__(self) -> str:
        sites, steps = len(self.series.measured), len(self.series.steps)
        return f"<Stats of {sites} sites, {steps} steps>"
