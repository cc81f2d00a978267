"""``tt.Stats``: the sink that measures what flows, and keeps numbers instead of values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchtap.core.absence import Absence
from torchtap.core.distributed import DEQUANTIZED
from torchtap.core.errors import InputError
from torchtap.core.inference_mode import outside_inference_mode
from torchtap.core.record import BACKWARD, EVAL, FORWARD, Record
from torchtap.core.site import FLOW_PORTS, Site
from torchtap.stats.catalogue.protocol import Statistic, needs_places
from torchtap.stats.catalogue.results import Missing
from torchtap.stats.kernels.device_table import Block, DeviceTable, Taken
from torchtap.stats.measure import (
    SAMPLE,
    accumulate,
    dtype_name,
    narrow_subnormals,
    no_values,
    real_values,
    shape_of,
    table_device,
    why_unreadable,
    without_places,
)
from torchtap.stats.meter import Clock, Meter, Sums
from torchtap.stats.series import Series, States
from torchtap.stats.statistics import NUM_TENSORS, SUBNORMAL, blank_rows
from torchtap.stats.step_histograms import StepHistograms

_UNREAD = 16
"""Steps whose numbers are read together, on the CPU. Between two steps of a training the code that
reads them leaves the processor's caches, and then takes several times as long as it does for the
second of two steps in a row. On other devices they are read one step later, so that copies on the
host do not pile up."""


def _declines(tensor: Tensor, step: int) -> bool:
    """A meter that leaves every tensor to :meth:`Stats.take`."""
    return False


NOT_OF_FORWARD = (
    "tt.Stats measures calls of the forward only, and some ran inside a backward; tt.Memory keeps "
    "their values, in phase='backward'"
)


_NEEDS_PLACES = (
    "which are not where they stand in it. Keep the values with tt.Memory(), and compute it of "
    "their dense form"
)


class Stats:
    """A sink that measures every tensor as it flows, and keeps none.

    Per site and step, over all calls: counts (elements, finite, zero, NaN, +Inf, -Inf, subnormal),
    mean, std, rms, L1, L2, min, max, absmax, a signed-log histogram with quantiles and with the
    shares that would underflow or overflow in a smaller format, and the running mean over samples.
    A tensor is read once. Calls that a checkpoint computes again are not counted, and evaluation
    forwards of a model that trains are kept apart (``run.stats(site, phase="eval")``).

    Args:
        histogram: count histograms.
        exact: count every element in them. By default tensors of more than 8,192 elements are
            counted by one element in each of 2,048 equal parts, at places that follow no period;
            the standard error of the rank of a quantile is ``sqrt(q (1 - q) / 2048)``, which is
            1.1 % at the median. Of tensors of several sizes each gives equally many, and ``notes``
            says so. All other statistics are always over all elements.
        sample_mean: at which ports to keep the running sum over samples that ``run.mean_norm``
            needs: 8 bytes per element of one sample and site.
        statistics: more of them, built in (``tt.stats.top_k(5)``) or your own, see
            :class:`~torchtap.stats.Statistic`.
        keep: of how many steps histograms and ``statistics`` are kept. The numbers are kept of
            all steps (128 bytes each and site; beside ``tt.Disk`` on the disk), and everything is
            merged over the whole run too.

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

    keeps = reads_backward = False
    unguarded = ("meter",)

    def __init__(
        self,
        *,
        histogram: bool = True,
        exact: bool = False,
        sample_mean: Sequence[str] = ("input", "output"),
        statistics: Sequence[Statistic] = (),
        keep: int = 64,
    ) -> None:
        _check(sample_mean, statistics, keep)
        self.series = Series(keep, statistics)
        self.series.has_histograms = histogram
        self._skipped: dict[Absence, None] = {}
        self._histogram = histogram
        self._sample = 0 if exact else SAMPLE
        self._sample_mean = frozenset(sample_mean)
        self._statistics = tuple(statistics)
        self._states: dict[int, States] = {}
        self._closed = -1
        self._clock = Clock()
        self.series.lock = self._clock.lock
        self._meters: dict[Site, Meter] = {}
        # By the id of the site, held beside: hashing it takes longer than the rest.
        self._by_id: dict[int, tuple[Site, Meter]] = {}
        self._tables: dict[torch.device, DeviceTable] = {}
        # The place in the series of each row of a table; as an array when it is taken.
        self._known: dict[torch.device, list[int]] = {}
        self._places: dict[torch.device, NDArray[np.int64]] = {}
        self._pending: list[tuple[int, NDArray[np.int64], Callable[[], Taken]]] = []
        self._is_read = True
        self._evaluation: Stats | None = None
        self._another = partial(
            Stats,
            histogram=histogram,
            exact=exact,
            sample_mean=sample_mean,
            statistics=statistics,
            keep=keep,
        )

    # ------------------------------------------------------------------ as a sink

    def meter(self, site: Site) -> Callable[[Tensor, int], bool]:
        """Return the meter of a site's tensors, which hooks may call in place of :meth:`take`."""
        # Further statistics are code of the user's, which may raise: take() runs guarded.
        return _declines if self._statistics else self._meter(site)

    def _meter(self, site: Site) -> Meter:
        meter = self._meters.get(site)
        if meter is None:
            place = self.series.place_of(site)
            meter = self._meters[site] = Meter(site, place, self._clock, self._sample)
        return meter

    def take(self, record: Record) -> None:
        """Measure one value."""
        site = record.site
        if record.phase is BACKWARD:
            self._skipped[Absence(site, NOT_OF_FORWARD)] = None
            return
        known = self._by_id.get(id(site))
        if known is None:
            known = self._by_id[id(site)] = site, self._meter(site)
        if record.phase is not FORWARD:
            if record.phase is EVAL:
                self._take_evaluation(record)
            return
        if record.labels:
            self.series.measured[known[1].place].note(record.labels)
        if not known[1](record.kept, record.step):
            self._take_carefully(known[1], record)
        elif self._statistics:
            self._take_further(known[1], record)

    def _take_evaluation(self, record: Record) -> None:
        """Evaluation forwards are measured as training forwards are, and kept apart."""
        if self._evaluation is None:
            self._evaluation = self._another()
            self.series.evaluation = self._evaluation.series
        self._evaluation.take(record._replace(phase=FORWARD))

    def close_step(self, step: int) -> None:
        """The step has ended: copy its numbers, and read those of steps before."""
        if self._evaluation is not None:
            self._evaluation.close_step(step)
        with self._clock.lock:
            self._take_tables()
            self._closed = step
            self._hand_over_states()
            self._clock.step = step + 1
            behind = _UNREAD if all(one.type == "cpu" for one in self._tables) else 1
            if len(self._pending) > behind * len(self._tables):
                while len(self._pending) > len(self._tables):
                    self._read_one()

    def close(self) -> None:
        """Nothing more will come."""
        self.flush()

    @property
    def absent(self) -> tuple[Absence, ...]:
        """Return the absences: values that the sink was given and could not measure."""
        of_evaluation = () if self._evaluation is None else self._evaluation.absent
        return tuple(dict.fromkeys([*self._skipped, *of_evaluation]))

    def measured(self) -> Series:
        """Return the series of what was measured so far, also of the running step."""
        with outside_inference_mode():
            self.flush()
        return self.series

    def flush(self) -> None:
        """Bring ``series`` up to date."""
        if self._evaluation is not None:
            self._evaluation.flush()
        with self._clock.lock:
            self._take_tables()
            if self._is_read:
                return
            while self._pending:
                self._read_one()
            self._hand_over_states()
            self._is_read = True
            for meter in self._meters.values():
                if meter.varies:
                    self.series.measured[meter.place].shape = None
                if meter.sums is not None:
                    measured = self.series.measured[meter.place]
                    measured.mean_sum = meter.sums.total.cpu().numpy().copy()
                    measured.num_samples = int(meter.sums.num_samples)

    # ------------------------------------------------------------------ measuring

    def _take_carefully(self, meter: Meter, record: Record) -> None:
        tensor = record.kept
        reason = no_values(tensor)
        if reason is not None:
            self._skipped[Absence(record.site, reason)] = None
            return
        quiet = torch.autocast(tensor.device.type, enabled=False)
        with self._clock.lock, torch.no_grad(), quiet:
            try:
                values, notes = real_values(tensor)
            except RuntimeError as error:
                self._skipped[Absence(record.site, why_unreadable(error))] = None
                return
            if record.step != self._clock.step:
                self._change_step(record.step)
            self._clock.has_measured = True
            block = self._prepare(meter, record.site, tensor, values, notes)
            histograms = block.histograms
            if meter.is_replaced:
                block.clear(meter.index)
            accumulate(
                values,
                block.rows[meter.index],
                None if histograms is None else histograms[meter.index],
                self._sample,
            )
            block.rows[meter.index, SUBNORMAL] += narrow_subnormals(tensor, values)
            self._add_samples(meter, values, notes)
            self._update_states(meter, values, record, without_places(notes))

    def _take_further(self, meter: Meter, record: Record) -> None:
        """Only the further statistics: the rest was measured the quick way."""
        is_cast = torch.is_autocast_enabled("cpu")
        quiet = torch.autocast("cpu", enabled=False) if is_cast else contextlib.nullcontext()
        with self._clock.lock, torch.no_grad(), quiet:
            self._update_states(meter, record.kept.detach(), record)

    def _change_step(self, step: int) -> None:
        """A gradient of a step that was closed, or records that came without ``close_step``."""
        self._take_tables()
        self._clock.step = step

    def _prepare(
        self, meter: Meter, site: Site, tensor: Tensor, values: Tensor, notes: tuple[str, ...]
    ) -> Block:
        """See that the meter fits this tensor, and that the series knows of it."""
        measured = self.series.measured[meter.place]
        device = table_device(values.device)
        is_new = meter.block is None
        block = meter.block
        if block is None or block.rows.device != device:
            block = self._take_row(meter, device)
        if is_new:
            measured.dtype, measured.shape = dtype_name(tensor), shape_of(tensor)
            measured.itemsize = tensor.element_size()
            if site.port in self._sample_mean:
                meter.sums = Sums(values)
        else:
            if measured.dtype != dtype_name(tensor):
                measured.dtype = "mixed"
            meter.varies = meter.varies or meter.shape != shape_of(tensor)
        meter.shape = shape_of(tensor)
        measured.note(notes)
        if not notes:
            meter.trust(tensor)
        else:
            meter.distrust()
        return block

    def _take_row(self, meter: Meter, device: torch.device) -> Block:
        table = self._tables.get(device)
        if table is None:
            table = self._tables[device] = DeviceTable(device, histogram=self._histogram)
            self._known[device], self._places[device] = [], np.zeros(0, dtype=np.int64)
        block, index = table.add()
        self._known[device].append(meter.place)
        meter.measure_into(block, index)
        return block

    def _add_samples(self, meter: Meter, values: Tensor, notes: tuple[str, ...]) -> None:
        sums = meter.sums
        if sums is None:
            return
        why = None
        if set(notes) - {DEQUANTIZED}:  # Magnitudes, stored values: not what would be averaged.
            why = f"it is measured {', '.join(notes)}; keep the values instead, with tt.Memory()"
        elif values.shape[1:] != sums.shape:
            why = f"its samples differ in shape, {list(sums.shape)} and {list(values.shape[1:])}"
        if why is not None:
            meter.sums = None
            measured = self.series.measured[meter.place]
            measured.mean_sum, measured.why_no_mean = None, why
            return
        sums.num_samples += values.shape[0] if values.dim() else 1
        total = values.sum(0, dtype=torch.float64) if values.dim() else values
        sums.total += total.to(sums.total.device)

    def _update_states(
        self, meter: Meter, values: Tensor, record: Record, no_places: str | None = None
    ) -> None:
        """Update the further statistics; ``no_places``: why these values stand at no place."""
        if not self._statistics:
            return
        by_place = self._states.setdefault(record.step, {})
        states = by_place.get(meter.place)
        if states is None or meter.is_replaced:
            states = by_place[meter.place] = [one.init() for one in self._statistics]
        why = f"{no_places}, {_NEEDS_PLACES}"
        lost = [one.name for one in self._statistics if no_places and needs_places(one)]
        if lost:
            reason = f"no {', '.join(map(repr, lost))}: {why}"
            self._skipped[Absence(record.site, reason)] = None
        for number, one in enumerate(self._statistics):
            if one.name in lost:
                states[number] = Missing(f"{why}.")
            elif not isinstance(states[number], Missing):
                states[number] = one.update(states[number], values)

    # ------------------------------------------------------------------ the end of a step

    def _take_tables(self) -> None:
        if not self._clock.has_measured:
            return
        self._clock.has_measured = self._is_read = False
        for device, table in self._tables.items():
            places = self._places[device]
            if len(places) < table.num_rows:
                places = self._places[device] = np.array(self._known[device])
            self._pending.append((self._clock.step, places, table.take()))

    def _read_one(self) -> None:
        step, places, snapshot = self._pending.pop(0)
        rows, listed = snapshot()
        if not len(rows) or not rows[:, NUM_TENSORS].any():
            return
        ordered = blank_rows(len(self.series.measured))
        ordered[places] = rows
        parts = [StepHistograms(places[owners], histograms) for owners, histograms in listed]
        self.series.add_step(step, ordered, parts)

    def _hand_over_states(self) -> None:
        """Bring the further statistics into the series, which merges those of closed steps."""
        while self._states and self._pending:
            self._read_one()
        for step in list(self._states):
            if step <= self._closed:
                self.series.add_states(step, self._states.pop(step))
            else:
                self.series.show_states(step, self._states[step])

    def __repr__(self) -> str:
        sites, steps = len(self.series.sites), len(self.series.steps)
        return f"<Stats of {sites} sites, {steps} steps>"


def _check(sample_mean: Sequence[str], statistics: Sequence[Statistic], keep: int) -> None:
    if not isinstance(keep, int) or keep < 1:
        raise InputError(f"keep is {keep!r}; expected a number of steps from 1.")
    for one in statistics:
        if not isinstance(one, Statistic):
            raise InputError(
                f"{one!r} is no statistic: expected name, init, update, merge and finish."
            )
    names = [one.name for one in statistics]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"Two statistics are named {twice!r}, and extra holds one of each name. Give each "
            f"its own: name='...'."
        )
    odd = set(sample_mean) - set(FLOW_PORTS)
    if odd:
        raise InputError(
            f"sample_mean has {sorted(odd)[0]!r}; expected some of {', '.join(FLOW_PORTS)}."
        )
