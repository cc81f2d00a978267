"""Statistics of the elements of one or several tensors together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.printed import Printed
from torchtap.core.text import count, nonfinite, number, plural, size, typed
from torchtap.stats.catalogue.results import Extra
from torchtap.stats.histogram import Histogram
from torchtap.stats.rows import (
    L1,
    M2,
    MAX,
    MEAN,
    MIN,
    NAN,
    NEGINF,
    NUM_FINITE,
    NUM_TENSORS,
    NUMEL,
    POSINF,
    SUBNORMAL,
    SUM_SQUARES,
    ZEROS,
    Shape,
    merged_row,
)

if TYPE_CHECKING:
    from torchtap.core.printed_page import Page

LEANING = "histogram leans to the smaller tensors"
"""Said where tensors of several sizes were sampled: all of them give equally many elements."""

NOT_AN_UPDATE = "only an update has one"
NO_ONE_PART = (
    "of merged statistics it is not known whether their parameters are the same or parts of one"
)
NO_STATES = (
    "only states of further statistics can be merged, and Statistics.merge has their results. Ask "
    "one run for several steps together: run.stats(site, step=[...])."
)
NO_ONE_WEIGHT = "of several steps there is no one parameter to divide by"

NUMBERS = (
    *("numel", "num_finite", "mean", "std", "rms", "l1", "l2", "min", "max", "absmax"),
    *("zeros", "nan", "posinf", "neginf", "subnormal"),
)
"""Statistics that are one number."""


@dataclass(frozen=True, slots=True)
class Statistics(Printed):
    """Statistics of one or several tensors together. Printing it shows one line.

    Everything but the counts is over the finite elements, summed in float64; where there are
    none it is NaN (sums are 0). For complex tensors it is over the magnitudes; whole numbers beyond
    2^53 are rounded to float64.

    Attributes:
        numel: elements.
        num_finite: elements that are neither NaN nor infinite.
        mean: of the finite elements.
        m2: sum of their squared deviations from the mean.
        l1: sum of their magnitudes.
        sum_squares: sum of their squares.
        min: the smallest.
        max: the largest.
        zeros: elements equal to zero.
        nan: NaN elements.
        posinf: elements equal to +Inf.
        neginf: elements equal to -Inf.
        subnormal: elements too small for the dtype's full precision.
        num_tensors: how many tensors were merged.
        histogram: see :class:`Histogram`; ``None`` if it was not asked for.
        dtype: of the tensors, without ``torch.``; ``mixed`` if they differ.
        shape: of the tensors; ``None`` if they differ.
        nbytes: bytes of the tensors together; of mixed dtypes as if all were of the first.
        weight_l2: of an ``update``, the norm of the parameter when the step began, if ``param``
            was watched too; else, and of several steps together, NaN.
        why_no_ratio: why there is no ``update_ratio``; empty where there is one.
        notes: what else is to be known, e.g. ``("by magnitude",)``, or ``("3 of 10 steps",)`` of a
            window that was measured in part.
        extra: name -> result of the statistics that were asked for beside these. One that cannot
            be had (of a step long ago, of a window of a saved run) raises ``RunError`` with the
            reason when it is read.

    Example:
        >>> import torch, torchtap as tt
        >>> one = tt.measure(torch.tensor([1.0, 2.0, 3.0, float("nan")]))
        >>> one.mean, one.nan, one.num_finite
        (2.0, 1, 3)
        >>> one.merge(tt.measure(torch.tensor([6.0]))).mean
        3.0
    """

    numel: int = 0
    num_finite: int = 0
    mean: float = math.nan
    m2: float = 0.0
    l1: float = 0.0
    sum_squares: float = 0.0
    min: float = math.nan
    max: float = math.nan
    zeros: int = 0
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    subnormal: int = 0
    num_tensors: int = 0
    histogram: Histogram | None = field(default=None, repr=False)
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    nbytes: int = 0
    weight_l2: float = math.nan
    why_no_ratio: str = NOT_AN_UPDATE
    notes: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=Extra, repr=False)

    @property
    def std(self) -> float:
        """Return the population standard deviation (divided by the number of finite elements)."""
        return math.sqrt(self.m2 / self.num_finite) if self.num_finite else math.nan

    @property
    def rms(self) -> float:
        """Return the root of the mean square."""
        return math.sqrt(self.sum_squares / self.num_finite) if self.num_finite else math.nan

    @property
    def l2(self) -> float:
        """Return the Euclidean norm."""
        return math.sqrt(self.sum_squares)

    @property
    def absmax(self) -> float:
        """Return the largest magnitude."""
        return max(abs(self.min), abs(self.max)) if self.num_finite else math.nan

    @property
    def nonfinite(self) -> int:
        """Return how many elements are NaN or infinite."""
        return self.numel - self.num_finite

    @property
    def update_ratio(self) -> float:
        """Return the norm of an ``update`` over that of the parameter when the step began.

        Both over finite elements. NaN where there is none, and ``why_no_ratio`` says why: of
        anything but an ``update``; of several steps together; where ``param`` was not watched
        together with ``update``; and where the parameter was all zero, as a fresh bias is. A step
        that the optimizer (or ``GradScaler``) skipped has no update at all: it is not among
        the steps of ``run.over_steps``, and ``absent`` names it with its reason.
        """
        return self.l2 / self.weight_l2 if self.weight_l2 else math.nan

    def numbers(self) -> dict[str, float]:
        """Return name -> number of all statistics that are one number, ordered as ``NUMBERS``."""
        return {name: getattr(self, name) for name in NUMBERS}

    def quantile(self, q: float) -> float:
        """Return the value below which a share ``q`` of finite elements lies, right to 3.1 %.

        So far as float32 holds the magnitudes with full precision, 1.2e-38 to 3.4e38. The ends are
        exact. NaN where there is no finite element. See :meth:`Histogram.quantile`.

        Raises:
            InputError: there is no histogram, or ``q`` is not between 0 and 1.
        """
        value = self._counted().quantile(q)
        if q in (0, 1):
            return self.max if q else self.min
        return min(max(value, self.min), self.max) if self.num_finite else math.nan

    def middle(self, share: float) -> tuple[float, float]:
        """Return between which values the middle ``share`` of the finite elements lies.

        ``middle(0.75)`` leaves out the lowest and the highest eighth. Each end is right to 1/33.
        """
        return self.quantile((1 - share) / 2), self.quantile((1 + share) / 2)

    def underflow(self, dtype: str) -> float:
        """Return the share of the finite elements that are not zero and round to zero in ``dtype``.

        The denominator counts all finite elements, zeros too. Among those that are not zero it is
        ``underflow(dtype) / (1 - zeros / num_finite)``. See :meth:`Histogram.underflow`.
        """
        return self._counted().underflow(dtype)

    def overflow(self, dtype: str) -> float:
        """Return the share of the finite elements that lie beyond the range of ``dtype``.

        See :meth:`Histogram.overflow`.
        """
        return self._counted().overflow(dtype)

    def merge(self, other: Statistics) -> Statistics:
        """Merge the statistics of both parts; associative up to rounding.

        ``extra`` and ``update_ratio`` cannot be merged: reading one of them says so.

        Numbers are merged as rows are, see :func:`merged_row`.
        """
        histogram = self._merged_histogram(other)
        shape = _common(self, other, self.shape, other.shape, None)
        is_leaning = histogram is not None and histogram.is_sample and shape is None
        notes = (*self.notes, *other.notes, *((LEANING,) if is_leaning else ()))
        weight_l2, why_no_ratio, extra = self._of_one_part(other)
        return from_row(
            merged_row(row_of(self), row_of(other)),
            histogram=histogram,
            dtype=_common(self, other, self.dtype, other.dtype, "mixed"),
            shape=shape,
            nbytes=self.nbytes + other.nbytes,
            weight_l2=weight_l2,
            why_no_ratio=why_no_ratio,
            notes=tuple(dict.fromkeys(notes)),
            extra=extra,
        )

    def _of_one_part(self, other: Statistics) -> tuple[float, str, Mapping[str, Any]]:
        """Return what just one part can have: the weight, why it has no ratio, and ``extra``."""
        if not (self.num_tensors and other.num_tensors):
            one = self if self.num_tensors else other
            return one.weight_l2, one.why_no_ratio, one.extra
        missing = dict.fromkeys([*self.extra, *other.extra], NO_STATES)
        for extra in (self.extra, other.extra):
            missing.update(getattr(extra, "missing", {}))
        is_update = NOT_AN_UPDATE not in (self.why_no_ratio, other.why_no_ratio)
        why = NO_ONE_PART if is_update else NOT_AN_UPDATE
        return math.nan, why, Extra(where="merged statistics", missing=missing)

    def _merged_histogram(self, other: Statistics) -> Histogram | None:
        if not (self.num_tensors and other.num_tensors):
            return (self if self.num_tensors else other).histogram
        if self.histogram is None or other.histogram is None:
            return None
        return self.histogram.merge(other.histogram)

    def _counted(self) -> Histogram:
        if self.histogram is None:
            raise InputError(
                "There is no histogram here, so no quantiles and shares. Measure with "
                "histogram=True (tt.Stats(histogram=True) when watching); of a step long ago, with "
                "a larger tt.Stats(keep=...)."
            )
        return self.histogram

    def __repr__(self) -> str:
        return one_line(self)

    def _page(self) -> Page:
        return show_statistics(self)


def why_no_ratio(weight_l2: float) -> str:
    """Say why an update of one step has no ratio to its parameter; empty where it has one.

    It names no site: a table has one line for all sites of which the same is to be said.
    """
    if math.isnan(weight_l2):
        return "the port param was not watched beside it in that step"
    return "" if weight_l2 else "the parameter was all zero when the step began"


def other_shape(of_param: Shape | None, of_update: Shape | None) -> str:
    """Say that an update is of a part of the parameter only, or the reverse: there is no ratio."""
    return (
        f"the parameter has shape {of_param} and its update {of_update}: one is a part of the other"
    )


def _common(one: Statistics, two: Statistics, a: Any, b: Any, different: Any) -> Any:
    if not (one.num_tensors and two.num_tensors):
        return a if one.num_tensors else b
    return a if a == b else different


def from_row(
    row: Tensor | list[float],
    *,
    histogram: Histogram | None = None,
    dtype: str = "",
    shape: tuple[int, ...] | None = None,
    nbytes: int = 0,
    weight_l2: float = math.nan,
    why_no_ratio: str = NOT_AN_UPDATE,
    notes: tuple[str, ...] = (),
    extra: Mapping[str, Any] | None = None,
) -> Statistics:
    """Return a row as a value."""
    numbers: list[float] = row.tolist() if isinstance(row, Tensor) else row
    some = numbers[NUM_FINITE] > 0
    return Statistics(
        numel=int(numbers[NUMEL]),
        num_finite=int(numbers[NUM_FINITE]),
        mean=numbers[MEAN] if some else math.nan,
        m2=numbers[M2],
        l1=numbers[L1],
        sum_squares=numbers[SUM_SQUARES],
        min=numbers[MIN] if some else math.nan,
        max=numbers[MAX] if some else math.nan,
        zeros=int(numbers[ZEROS]),
        nan=int(numbers[NAN]),
        posinf=int(numbers[POSINF]),
        neginf=int(numbers[NEGINF]),
        subnormal=int(numbers[SUBNORMAL]),
        num_tensors=int(numbers[NUM_TENSORS]),
        histogram=histogram,
        dtype=dtype,
        shape=shape,
        nbytes=nbytes,
        weight_l2=weight_l2,
        why_no_ratio=why_no_ratio,
        notes=notes,
        extra=Extra() if extra is None else extra,
    )


def row_of(stats: Statistics) -> list[float]:
    """Return the row that :func:`from_row` makes a value of."""
    some = stats.num_finite > 0
    mean, low, high = (stats.mean, stats.min, stats.max) if some else (0.0, math.inf, -math.inf)
    sums = (mean, stats.m2, stats.l1, stats.sum_squares, low, high)
    bad = (stats.nan, stats.posinf, stats.neginf)
    counts = (stats.zeros, *bad, stats.subnormal, stats.num_tensors)
    return [stats.numel, stats.num_finite, *sums, *counts, 0.0, 0.0]  # The kernels' own two.


_BARS = " ▁▂▃▄▅▆▇█"
_NUM_CELLS = 12


def sparkline(stats: Statistics, num_cells: int = _NUM_CELLS) -> str:
    """Draw a histogram in one line of text, from the 1st to the 99th percentile."""
    cells = [] if stats.histogram is None else stats.histogram.shape(num_cells)
    top = max(cells, default=0)
    # Any count above zero shows at least the lowest bar.
    return "".join(_BARS[-(-one * (len(_BARS) - 1) // top)] for one in cells)


def one_line(stats: Statistics) -> str:
    """Say in a line what it is, range, histogram, mean, std, and what is not finite."""
    kind = typed(stats.dtype, stats.shape) if stats.shape is not None else stats.dtype
    tensors = plural(stats.num_tensors, "tensor") if stats.num_tensors != 1 else ""
    head = " ".join(part for part in (kind, tensors, size(stats.nbytes)) if part)
    notes = "".join(f", {note}" for note in stats.notes)
    if not stats.numel:
        return f"{head}{notes}: empty"
    bad = nonfinite(stats.nan, stats.posinf, stats.neginf).text
    said = f", {bad}" if stats.nonfinite else ""
    if not stats.num_finite:
        return f"{head}{notes}: nothing finite{said}"
    bars = f" {sparkline(stats)} " if stats.histogram is not None else " .. "
    return (
        f"{head}{notes}: [{number(stats.min)}{bars}{number(stats.max)}] "
        f"mean {number(stats.mean)}, std {number(stats.std)}{said}{_ratio(stats)}"
    )


def show_statistics(stats: Statistics) -> Page:
    """Show the numbers of the line by name, as a notebook does."""
    from torchtap.core.printed_page import Grid, Page

    shaped = typed(stats.dtype, stats.shape) if stats.shape is not None else stats.dtype
    rows = [
        ("tensor", shaped),
        ("tensors", count(stats.num_tensors)),
        ("bytes", size(stats.nbytes)),
    ]
    if stats.num_finite:
        numbers = ("min", "max", "mean", "std", "l2", "absmax")
        rows += [(name, number(getattr(stats, name))) for name in numbers]
        rows += [("histogram", sparkline(stats))] if stats.histogram is not None else []
    rows += [(name, count(getattr(stats, name))) for name in ("numel", "zeros")]
    rows += [("NaN/Inf", nonfinite(stats.nan, stats.posinf, stats.neginf).text)]
    if stats.why_no_ratio != NOT_AN_UPDATE:
        rows += [("update_ratio", stats.why_no_ratio or number(stats.update_ratio))]
    return Page(Grid([*rows, *(("note", note) for note in stats.notes)]))


def _ratio(stats: Statistics) -> str:
    """Return an update's ratio to the parameter as text, or why there is none."""
    if not stats.why_no_ratio:
        return f", update_ratio {number(stats.update_ratio)}"
    is_update = stats.why_no_ratio != NOT_AN_UPDATE
    return f", no update_ratio: {stats.why_no_ratio}" if is_update else ""
