"""Signed-log histograms with fixed bins, so that any two can be merged and compared.

A bin is the sign, the exponent and the first four bits of the mantissa of a float32: sixteen bins
of equal width per octave, zero in the middle. Elements of other dtypes go where their float32
would; what is beyond its range goes into the outermost bins.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtap.core.errors import InputError

NUM_BINS = 8192
SHIFT = 19
"""A float32's bits, shifted right by this, are its bin."""

_HALF = NUM_BINS // 2
_LAST = 0x7F7FFFFF >> SHIFT

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Format:
    """The magnitudes where a number format rounds to zero or Inf; ties are not told apart."""

    to_zero_below: float
    to_inf_from: float


# Half the smallest subnormal is rounded to zero; half a unit above the largest number to Inf
# (IEEE 754 round to nearest; Micikevicius et al. 2022, "FP8 formats for deep learning", table 1).
_FORMATS: Mapping[str, _Format] = {
    "float16": _Format(2.0**-25, 65520.0),
    "bfloat16": _Format(2.0**-134, (2 - 2.0**-8) * 2.0**127),
    "float8_e4m3fn": _Format(2.0**-10, 464.0),
    "float8_e5m2": _Format(2.0**-17, 61440.0),
}
_SHORT = {
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn",
    "float8_e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}


@dataclass(frozen=True, eq=False)
class Histogram:
    """The count of each bin that was met. Only finite elements are counted.

    Attributes:
        bins: numbers of the bins that were met, in the order of their values,
            ``int64[num_bins]``.
        counts: how often, ``int64[num_bins]``.
        is_sample: whether a sample of the elements was counted and not all of them.

    Example:
        >>> import torch, torchtap as tt
        >>> histogram = tt.measure(torch.tensor([1.0, 1.0, -2.0, 0.0])).histogram
        >>> histogram.counts.tolist()
        [1, 1, 2]
    """

    bins: Ints
    counts: Ints
    is_sample: bool = False

    @staticmethod
    def of(full: Any, *, is_sample: bool = False) -> Histogram:
        """Make a histogram from the counts of all :data:`NUM_BINS` bins."""
        full = np.asarray(full, dtype=np.int64)
        bins = np.flatnonzero(full)
        return listed_histogram(bins, full[bins], is_sample=is_sample)

    @staticmethod
    def sparse(bins: Any, counts: Any, is_sample: bool = False) -> Histogram:
        """Make a histogram from bins in any order, each at most once."""
        bins, counts = np.asarray(bins, dtype=np.int64), np.asarray(counts, dtype=np.int64)
        # By value: the bits of negative floats ascend as the numbers descend.
        order = np.argsort(_rank(bins), kind="stable")
        return Histogram(bins[order], counts[order], is_sample)

    @property
    def num_counted(self) -> int:
        """Elements that were counted."""
        return int(self.counts.sum())

    @property
    def edges(self) -> tuple[Floats, Floats]:
        """Lower and upper end of each bin, ``float64[num_bins]`` each."""
        magnitude = self.bins % _HALF
        inner, outer = _edge(magnitude), _edge(magnitude + 1)
        negative = self.bins >= _HALF
        return np.where(negative, -outer, inner), np.where(negative, -inner, outer)

    @property
    def middles(self) -> Floats:
        """The value that stands for each bin: nowhere in it further than 1/33 from the truth.

        Subnormals of float32 have fewer bins, and what is beyond float32 has only the outermost.
        """
        low, high = self.edges
        with np.errstate(invalid="ignore"):
            # The harmonic mean of the edges, whose relative error to both is the same.
            middles = 2 * low * high / (low + high)
        # The bins around zero hold it, and what is too small to tell from it.
        return np.where((low == 0) | (high == 0), 0.0, middles)

    def merge(self, other: Histogram) -> Histogram:
        """Merge both; associative and commutative, exactly."""
        return merged_together([self, other])

    def without(self, part: Histogram) -> Histogram:
        """Return the histogram with ``part``, which was merged into it, taken out again."""
        counts = self.counts.copy()
        # Each bin of the part is there, since it was merged into this one.
        counts[np.searchsorted(_rank(self.bins), _rank(part.bins))] -= part.counts
        return Histogram(self.bins[counts > 0], counts[counts > 0], self.is_sample)

    def quantile(self, q: float) -> float:
        """Return the value below which a share ``q`` of the counted elements lies.

        Linear between the two nearest order statistics (Hyndman & Fan 1996, type 7, as
        ``torch.quantile``), each of them right to 1/33 of itself, if it is one of float32's normal
        numbers. NaN where nothing was counted. For a sample of ``m`` elements it is the quantile at
        ``q`` give or take :meth:`standard_error`.

        Raises:
            InputError: ``q`` is not between 0 and 1.
        """
        if not 0 <= q <= 1:
            raise InputError(f"A quantile lies between 0 and 1, not at {q!r}.")
        total = self.num_counted
        if total == 0:
            return math.nan
        ends = np.cumsum(self.counts)
        rank = q * (total - 1)
        below, above = math.floor(rank), math.ceil(rank)
        # An order statistic lies in the first bin whose cumulated count is above its rank.
        places = np.searchsorted(ends, [below, above], side="right")
        low, high = self.middles[places]
        return float(low + (rank - below) * (high - low))

    def standard_error(self, q: float) -> float:
        """Return standard error of the rank of quantile ``q``: 0 where all elements were counted.

        Where tensors of several sizes were sampled, the ranks are those of a mixture in which all
        count alike.

        Source: binomial, ``sqrt(q (1 - q) / m)``; the sample is stratified, so it is less.
        """
        return math.sqrt(q * (1 - q) / self.num_counted) if self.is_sample else 0.0

    def underflow(self, dtype: str) -> float:
        """Return the share of counted elements that are not zero and round to zero in ``dtype``.

        Args:
            dtype: ``float16``, ``bfloat16``, ``float8_e4m3fn``, ``float8_e5m2``, or short
                ``fp16 bf16 e4m3 e5m2``.

        Returns:
            0 to 1, of all counted elements, zeros among them (NaN and infinite ones are not
            counted); NaN where nothing was counted. Magnitudes below 2^-130 count as zeros, from
            which they cannot be distinguished; there are some in float64 and among float32's
            subnormals.
        """
        return self._share((self._smallest < _format(dtype).to_zero_below) & (self.middles != 0))

    def overflow(self, dtype: str) -> float:
        """Return share of the counted elements that lie beyond the range of ``dtype``.

        A conversion makes them infinite, NaN, or the largest number, as the hardware does.

        Args:
            dtype: as in :meth:`underflow`.

        Returns:
            0 to 1, of all counted elements, zeros among them; NaN where nothing was counted. For
            ``float16`` elements from 65,520 to 65,536, which lie inside a bin, are taken as
            fitting; the same holds for the last 0.2 % of ``bfloat16``.
        """
        return self._share(self._smallest >= _format(dtype).to_inf_from)

    def shape(self, num_cells: int) -> list[int]:
        """Counts in equal cells between the 1st and 99th percentile, the rest in the outer ones.

        Empty where nothing was counted; everything in the middle cell where all are alike.
        """
        if not self.num_counted:
            return []
        low, high = self.quantile(0.01), self.quantile(0.99)
        cells = np.full(len(self.bins), num_cells // 2)
        if high > low:
            within = (self.middles - low) / (high - low)
            cells = np.clip((within * num_cells).astype(np.int64), 0, num_cells - 1)
        return [int(n) for n in np.bincount(cells, weights=self.counts, minlength=num_cells)]

    @property
    def exponents(self) -> dict[int, int]:
        """Exponent -> how many elements ``2^exponent <= |x| < 2^(exponent + 1)``; exact.

        Zeros and subnormals of float32 are under -127.
        """
        found: dict[int, int] = {}
        for number, count in zip((self.bins % _HALF) // 16, self.counts, strict=True):
            found[int(number) - 127] = found.get(int(number) - 127, 0) + int(count)
        return dict(sorted(found.items()))

    @property
    def _smallest(self) -> Floats:
        return _edge(self.bins % _HALF)

    def _share(self, chosen: NDArray[np.bool_]) -> float:
        total = self.num_counted
        return float(self.counts[chosen].sum() / total) if total else math.nan


@dataclass(frozen=True, eq=False)
class Histograms:
    """Many of them, one after the other, as they were taken out of a table.

    Attributes:
        bins: ``uint16[n]``.
        counts: ``int64[n]``, or ``uint16[n]`` where they are small.
        ends: where each of them ends, ``int64[histograms]``.
        is_sample: for each of them, ``bool[histograms]``.
    """

    bins: NDArray[np.uint16]
    counts: Ints | NDArray[np.uint16]
    ends: Ints
    is_sample: NDArray[np.bool_]

    @classmethod
    def joined(cls, parts: Sequence[Histograms]) -> Histograms:
        """Put several of these one after the other."""
        starts = np.cumsum([0, *(len(part.bins) for part in parts)]).tolist()
        return cls(
            np.concatenate([part.bins for part in parts]),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.ends + start for part, start in zip(parts, starts, strict=False)]),
            np.concatenate([part.is_sample for part in parts]),
        )

    def of(self, row: int) -> Histogram | None:
        """Return the histogram of one row; ``None`` if it counted nothing."""
        start, end = self.ends[row - 1] if row else 0, self.ends[row]
        if start == end:
            return None
        bins = self.bins[start:end].astype(np.int64)
        counts = self.counts[start:end].astype(np.int64)
        return listed_histogram(bins, counts, is_sample=bool(self.is_sample[row]))


def blank_histograms(number: int) -> Ints:
    """Return histograms that counted nothing, ``int64[number, 8192]``, in untouched memory.

    A page of it costs nothing before it is counted into. ``numpy.zeros`` promises less: C's
    allocator hands a freed piece out again, and clears all of it then (5 ms for 256 histograms).
    """
    if sys.platform == "win32":
        return np.zeros((number, NUM_BINS), dtype=np.int64)
    size = number * NUM_BINS * np.dtype(np.int64).itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype=np.int64).reshape(number, NUM_BINS)


def merged_together(parts: Sequence[Histogram]) -> Histogram:
    """Merge several histograms into one."""
    if len(parts) == 1:
        return parts[0]
    bins, place = np.unique(np.concatenate([one.bins for one in parts]), return_inverse=True)
    counts = np.zeros(len(bins), dtype=np.int64)
    # Not counts[place] +=, which adds once where a bin comes several times.
    np.add.at(counts, place, np.concatenate([one.counts for one in parts]))
    return Histogram.sparse(bins, counts, any(one.is_sample for one in parts))


def listed_histogram(bins: Ints, counts: Ints, *, is_sample: bool = False) -> Histogram:
    """Make a histogram of bins in the order of their numbers, each once, as the kernel lists them.

    Those of negative numbers come last there, the largest magnitude at the very end.
    """
    first_negative = int(bins.searchsorted(_HALF))

    def by_value(listed: Ints) -> Ints:
        return np.concatenate((listed[first_negative:][::-1], listed[:first_negative]))

    return Histogram(by_value(bins), by_value(counts), is_sample)


def _edge(magnitude: Ints) -> Floats:
    """Return the lower end of a bin, by the bits of a float32; behind the last one a step more."""
    # A bin number is the first bits of a float32: shifted back, they are its edge next to zero.
    bits = (np.minimum(magnitude, _LAST) << SHIFT).astype(np.uint32)
    edge = bits.view(np.float32).astype(np.float64)
    return np.where(magnitude > _LAST, 2.0**128, edge)


def _rank(bins: Ints) -> Ints:
    """Return the order by value: the most negative first."""
    return np.where(bins >= _HALF, _HALF - 1 - bins, bins)


def _format(dtype: str) -> _Format:
    name = str(dtype).removeprefix("torch.")
    name = _SHORT.get(name, name)
    if name not in _FORMATS:
        raise InputError(f"{dtype!r} is none of the formats known here: {', '.join(_FORMATS)}.")
    return _FORMATS[name]
