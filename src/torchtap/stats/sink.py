"""``tt.Stats`` measures what flows, and keeps numbers instead of values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchtap.core.absence import Absence
from torchtap.core.errors import InputError
from torchtap.core.inference_mode import outside_inference_mode
from torchtap.core.ports import BY_NAME, FLOW_PORTS
from torchtap.core.record import BACKWARD, EVAL, FORWARD, Record
from torchtap.core.site import Site
from torchtap.core.torch_private import is_of_transform
from torchtap.core.weak_method import weakly
from torchtap.stats.catalogue.protocol import needs_places
from torchtap.stats.catalogue.results import Missing
from torchtap.stats.chosen_statistics import ChosenStatistics, Wanted
from torchtap.stats.kernels import native
from torchtap.stats.kernels.device_table import Block, DeviceTables, Taken
from torchtap.stats.meter import (
    DTYPE_OF,
    Meter,
    MeterKind,
    QuickMeter,
    Sums,
    is_plain,
    new_clock,
    new_quick_meter,
    new_quick_meters,
)
from torchtap.stats.readable import (
    SAMPLE,
    accumulate,
    add_narrow_subnormals,
    dtype_name,
    has_memory,
    no_values,
    real_values,
    shape_of,
    table_device,
    why_unreadable,
    without_places,
)
from torchtap.stats.rows import NUM_TENSORS
from torchtap.stats.series import Series

NOT_OF_FORWARD = (
    "tt.Stats measures calls of the forward only, and some ran inside a backward; tt.Memory keeps "
    "their values, in phase='backward'"
)
_CPU = torch.device("cpu")
_NO_STEP = -1 << 62
PATIENCE = 0.05
"""Seconds for which a thread that need not read a series now waits for its lock: the thread that
holds it may be waiting for that one."""
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
        exact: count every element in them. By default tensors of more than 4,096 elements are
            counted by one element in each of 2,048 equal parts, at places that follow no period;
            the standard error of the rank of a quantile is ``sqrt(q (1 - q) / 2048)``, which is
            1.1 % at the median. Tensors of several sizes give equally many each, and ``notes``
            says so. All other statistics are always over all elements.
        sample_mean: at which ports to keep the running sum over samples that ``run.mean_norm``
            needs: 8 bytes per element of one sample and site.
        statistics: more of them, built in (``tt.stats.top_k(5)``) or your own, see
            :class:`~torchtap.stats.Statistic`. A list is for all sites; by pattern
            (``{"*@ReLU": [...], "*:input": [...]}``) a site has those of all that it fits.
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
    skips_steps = True
    unguarded = ("meter",)

    def __init__(
        self,
        *,
        histogram: bool = True,
        exact: bool = False,
        sample_mean: Sequence[str] = ("input", "output"),
        statistics: Wanted = (),
        keep: int = 64,
    ) -> None:
        _check(sample_mean, keep)
        self._chosen = ChosenStatistics(statistics)
        self.series = Series(keep, self._chosen.every)
        self.series.has_histograms = histogram
        self._skipped: dict[Absence, None] = {}
        self._sample = 0 if exact else SAMPLE
        self._sample_mean = frozenset(sample_mean)
        self._statistics = self._chosen.every
        self._closed = -1
        self._clock = new_clock(self.series.lock)
        # By place. A meter is made of a quick one when that one alone does not do.
        self._quick: list[QuickMeter] = []
        self._meters: dict[int, Meter] = {}
        # Where there are further statistics, the first tensor of a site takes more.
        self._tables = DeviceTables(histogram=histogram, keep=keep)
        if not self._statistics and hasattr(self._clock, "begin"):
            self._clock.begin = weakly(self._begin)
            native.let_begin(self._clock, self._tables.native, self._sample)
        # By the id of the site, held beside: hashing it takes longer than the rest.
        self._by_id: dict[int, tuple[Site, Meter]] = {}
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

    def begin(self, about: Any) -> None:
        """Take the classes of the modules of which records will come, before any does."""
        if self._statistics:  # Only those may ask for a class.
            self._chosen.know(about.meta().modules)

    def meter(self, site: Site) -> Callable[[Tensor, int], bool]:
        """Return the meter of a site's tensors, which hooks may call in place of :meth:`take`."""
        place = self._place_of(site)
        if not self._statistics:
            return self._quick[place]
        meter = self._meter_at(place)
        if meter.slices is not None:
            return meter.quick

        def measure(tensor: Tensor, step: int) -> bool:
            # Further statistics are code of the user's, which may raise: take() runs guarded.
            return not self._chosen.has_any(site) and meter.quick(tensor, step)

        return measure

    def meters(self, sites: Sequence[Site]) -> list[Callable[[Tensor, int], bool]]:
        """Return a meter for each of sites that differ, as :meth:`meter` does."""
        with self._clock.lock:
            if self._statistics or self._quick:
                return list(map(self.meter, sites))
            kinds = {port: self._kind_of(port) for port in {site.port for site in sites}}
            self.series.add_sites(sites)
            self._quick += new_quick_meters(self._clock, [kinds[site.port] for site in sites])
            return list(self._quick)

    def _kind_of(self, port: str) -> MeterKind:
        return MeterKind(BY_NAME[port].is_replaced, port in self._sample_mean)

    def _place_of(self, site: Site) -> int:
        """Return the place of a site, which has a quick meter from then on."""
        with self._clock.lock:  # Several threads may bring new sites, or one, at the same moment.
            place = self.series.place_of(site)
            if place == len(self._quick):
                self._quick.append(new_quick_meter(self._clock, place, self._kind_of(site.port)))
            return place

    def _meter_at(self, place: int) -> Meter:
        meter = self._meters.get(place)
        if meter is None:
            site = self.series.measured.sites[place]
            wanted = self._chosen.of_slices(site) if self._statistics else ()
            made = Meter(site, place, self._quick[place], self._sample, wanted)
            meter = self._meters.setdefault(place, made)
        return meter

    def take(self, record: Record) -> None:
        """Measure one value."""
        site = record.site
        if record.phase is BACKWARD:
            self._skipped[Absence(site, NOT_OF_FORWARD)] = None
            return
        known = self._by_id.get(id(site))
        if known is None:
            known = self._by_id[id(site)] = site, self._meter_at(self._place_of(site))
        if record.phase is not FORWARD:
            if record.phase is EVAL:
                self._take_evaluation(record)
            return
        if record.labels:
            self.series.measured[known[1].place].note(record.labels)
        if not known[1].quick(record.kept, record.step):
            self._learn(known[1].place)
            if not self._take_first(known[1], record):
                self._take_carefully(known[1], record)
        elif known[1].slices is None and self._statistics and self._chosen.has_any(site):
            self._take_further(known[1], record)

    def _take_evaluation(self, record: Record) -> None:
        """Measure an evaluation forward as a training forward, and keep it apart."""
        with self._clock.lock:
            evaluation = self._evaluation
            if evaluation is None:
                evaluation = self._another()
                evaluation._chosen.know(self._chosen.types)
                self.series.evaluation = evaluation.series
                self._evaluation = evaluation
        evaluation.take(record._replace(phase=FORWARD))

    def close_step(self, step: int) -> None:
        """End a step: copy its numbers, and read those of steps before."""
        if self._evaluation is not None:
            self._evaluation.close_step(step)
        clock = self._clock
        with clock.lock:
            if clock.has_measured:
                self._take_tables()
            self._closed = step
            if self._statistics:
                self._close_states()
            clock.step = step + 1
            if self._tables.are_due:
                _add_steps(self.series, self._tables.read_all_but_last())

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

    def ended(self) -> Series | None:
        """Return the series of the steps that have ended, to any thread that asks.

        Asks no device: the last step of those is left out. ``None`` where another thread has held
        the lock of the series for 50 ms.
        """
        if self._evaluation is not None:
            self._evaluation.ended()
        if not self._clock.lock.acquire(timeout=PATIENCE):
            return None
        try:
            _add_steps(self.series, self._tables.read_what_is_here())
            with outside_inference_mode():
                self._learn_all()
        finally:
            self._clock.lock.release()
        return self.series

    def flush(self) -> None:
        """Bring ``series`` up to date."""
        if self._evaluation is not None:
            self._evaluation.flush()
        with self._clock.lock:
            self._take_tables()
            if self._is_read:
                return
            _add_steps(self.series, self._tables.read())
            self._close_states()
            self._is_read = True
            self._learn_all()
            for meter in self._meters.values():
                measured = self.series.measured[meter.place]
                if meter.quick.varies:
                    measured.shape = None
                if meter.sums is not None:
                    measured.mean_sum = meter.sums.total.cpu().numpy().copy()
                    measured.num_samples = meter.sums.num_samples[0]

    def close(self) -> None:
        """Copy the numbers of the last step; they are read when they are asked for."""
        if self._evaluation is not None:
            self._evaluation.close()
        with self._clock.lock:
            self._take_tables()
            if self._statistics:
                self._close_states()

    # ------------------------------------------------------------------ measuring

    def _take_first(self, meter: Meter, record: Record) -> bool:
        """Measure the first tensor of a site quickly, if it is a plain one; else return ``False``.

        A watch of one forward measures no other.
        """
        if meter.block is not None or self._statistics:
            return False
        return self._begin(meter.place, record.kept) and meter.quick(record.kept, record.step)

    def _begin(self, place: int, tensor: Tensor) -> bool:
        """Have the meter of a place measure tensors like its first one, where that is plain.

        Native meters call it, so that no record is made of the first tensor.
        """
        meter = self._meter_at(place)
        if torch.is_inference_mode_enabled() or not is_plain(tensor):
            return False
        if is_of_transform(tensor) or not has_memory(tensor):
            return False
        measured = self.series.measured[place]
        with self._clock.lock:
            self._learn(place)
            if meter.block is not None:  # Another thread began it meanwhile.
                return False
            block, index = self._tables.add(_CPU, place)
            # First: an interrupt in between would leave a meter whose values nobody reads.
            measured.dtype, measured.shape = dtype_name(tensor), tuple(tensor.shape)
            measured.itemsize = tensor.element_size()
            meter.begin(block, index, tensor, sums=measured.site.port in self._sample_mean)
        return True

    def _learn(self, place: int) -> None:
        """Learn what the quick meter of a place has noted that has begun by itself, once."""
        with self._clock.lock:
            begun = native.begun_by(self._quick[place])
            if begun is None:
                return
            meter = self._meter_at(place)
            # First: once the meter is aimed elsewhere, it has nothing to be learned.
            measured, dtype = self.series.measured[place], DTYPE_OF[begun[1]]
            measured.dtype, measured.itemsize = native.NAMES[dtype], dtype.itemsize
            measured.shape = None if meter.quick.varies else meter.shape
            meter.go_on(begun, *self._tables.on_cpu(begun[0]))

    def _learn_all(self) -> None:
        for place in range(len(self._quick)):
            self._learn(place)

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
            if record.step != self._clock.step:  # A late gradient, or no close_step in between.
                self._take_tables()
                self._clock.step = record.step
            self._clock.has_measured = True
            meter.take_slices(self.series.recent, record.step)
            block = self._prepare(meter, record.site, tensor, values, notes)
            if meter.is_replaced:
                block.clear(meter.index)
            row, histogram = block.at(meter.index)
            accumulate(values, row, histogram, self._sample)
            add_narrow_subnormals(row, tensor, values)
            why_no_mean = None if meter.sums is None else meter.sums.add(values, notes)
            if why_no_mean is not None:
                meter.sums = None
                measured = self.series.measured[meter.place]
                measured.mean_sum, measured.why_no_mean = None, why_no_mean
            self._update_states(meter, values, record, without_places(notes))

    def _take_further(self, meter: Meter, record: Record) -> None:
        """Update the further statistics alone: the rest was measured the quick way."""
        is_cast = torch.is_autocast_enabled("cpu")
        quiet = torch.autocast("cpu", enabled=False) if is_cast else contextlib.nullcontext()
        with self._clock.lock, torch.no_grad(), quiet:
            self._update_states(meter, record.kept.detach(), record)

    def _prepare(
        self, meter: Meter, site: Site, tensor: Tensor, values: Tensor, notes: tuple[str, ...]
    ) -> Block:
        """See that the meter fits this tensor, and that the series knows of it."""
        measured = self.series.measured[meter.place]
        device = table_device(values.device)
        is_new = meter.block is None
        block = meter.block
        if block is None or block.rows.device != device:
            block, index = self._tables.add(device, meter.place)
            meter.measure_into(block, index)
        if is_new:
            measured.dtype, measured.shape = dtype_name(tensor), shape_of(tensor)
            measured.itemsize = tensor.element_size()
            if site.port in self._sample_mean:
                meter.sums = Sums(values)
        else:
            if measured.dtype != dtype_name(tensor):
                measured.dtype = "mixed"
        meter.note_shape(shape_of(tensor), is_first=is_new)
        if not notes:
            meter.trust(tensor)
        else:
            measured.note(notes)
            meter.distrust()
        return block

    def _update_states(
        self, meter: Meter, values: Tensor, record: Record, no_places: str | None = None
    ) -> None:
        """Update the further statistics; ``no_places``: why these values stand at no place."""
        if not self._statistics or not self._chosen.has_any(record.site):
            return
        missing = dict(self._chosen.lost_at(record.site))
        if no_places is not None:
            why = f"{no_places}, {_NEEDS_PLACES}"
            asked = [statistic for statistic in self._statistics if statistic.name not in missing]
            lost = [one.name for one in asked if needs_places(one)]
            missing |= dict.fromkeys(lost, Missing(f"{why}."))
            if lost:
                reason = f"no {', '.join(map(repr, lost))}: {why}"
                self._skipped[Absence(record.site, reason)] = None
        self.series.recent.update_states(
            record.step, meter.place, values, missing, anew=meter.is_replaced
        )

    # ------------------------------------------------------------------ the end of a step

    def _take_tables(self) -> None:
        clock, tables = self._clock, self._tables
        if not clock.has_measured:
            return
        if self._statistics:
            for meter in self._meters.values():
                meter.take_slices(self.series.recent, clock.step)
        # A KeyboardInterrupt may come between any two lines, and loses none.
        self._is_read = False
        if tables.lone is not None:
            tables.close_lone(clock.step, tables.lone)
            clock.has_measured = False
            return
        taken = tables.take(clock.step)
        try:
            clock.has_measured = False
            tables.start_again(taken)
        except BaseException:
            clock.has_measured = False
            tables.start_again(taken)
            raise

    def _close_states(self) -> None:
        """Have the series merge the further statistics of closed steps."""
        _add_steps(self.series, self._tables.read())
        self.series.recent.close_states(self._closed)

    def __del__(self) -> None:
        clock = getattr(self, "_clock", None)
        if clock is None:  # It was refused.
            return
        clock.step = _NO_STEP  # Meters that hooks on a graph still hold measure nothing.
        # Who holds the lock still measures: then the memory goes with the meter.
        if clock.lock.acquire(blocking=False):
            if not clock.has_measured:  # Numbers that nobody has taken stay in its rows.
                self._tables.give_back()
            clock.lock.release()

    def __repr__(self) -> str:
        sites, steps = len(self.series.sites), len(self.series.steps)
        return f"<Stats of {sites} sites, {steps} steps>"


def _add_steps(series: Series, steps: Iterable[tuple[int, Taken]]) -> None:
    """Bring steps that were taken into the series."""
    for step, (rows, parts) in steps:
        if rows[:, NUM_TENSORS].any():
            series.add_step(step, rows, parts)


def _check(sample_mean: Sequence[str], keep: int) -> None:
    if not isinstance(keep, int) or keep < 1:
        raise InputError(f"keep is {keep!r}; expected a number of steps from 1.")
    odd = set(sample_mean) - set(FLOW_PORTS)
    if odd:
        raise InputError(
            f"sample_mean has {sorted(odd)[0]!r}; expected some of {', '.join(FLOW_PORTS)}."
        )
