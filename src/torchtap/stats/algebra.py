"""One algebra of what was measured: how parts of it make up a whole.

Parts follow one another (calls, steps, attempts), stand beside one another (ranks, each with its
part of the batch), or are shards of one tensor. Each site has a row of 16 numbers, a
histogram, a sum over samples, a shape, and states of further statistics; for each of these an
:class:`Algebra` says how parts are merged, and how shards are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from torchtap.stats.catalogue.protocol import Statistic, merge_ranks, merge_shards
from torchtap.stats.catalogue.results import Missing
from torchtap.stats.histogram import Histogram, merged_together
from torchtap.stats.rows import NUM_TENSORS, Shape, merged_rows

T = TypeVar("T")
Rows = NDArray[np.float64]
States = list[Any]
"""States of the further statistics of one site, in the order of the statistics."""
MIXED = "mixed"
"""The dtype of tensors of several dtypes."""


@dataclass(frozen=True, slots=True)
class Algebra(Generic[T]):
    """How parts of one kind make up a whole.

    Attributes:
        merge: makes one of parts that follow one another, the earliest first, or that stand beside
            one another.
        join: makes one of shards, in their order, given the dim along which the tensor was cut:
            negative ones count from the end, ``None`` where it is not known.
    """

    merge: Callable[[Sequence[T]], T]
    join: Callable[[Sequence[T], int | None], T]


class SampleSum(NamedTuple):
    """A sum over samples.

    Attributes:
        total: over dim 0, ``float64``; ``None`` where it could not be formed.
        num_samples: how many samples are in it.
    """

    total: NDArray[Any] | None = None
    num_samples: int = 0


# ---------------------------------------------------------------------- of one kind each


def _merged_rows(parts: Sequence[Rows]) -> Rows:
    merged: Rows = parts[0].copy()
    return reduce(merged_rows, parts[1:], merged)


def _joined_rows(parts: Sequence[Rows], dim: int | None) -> Rows:
    """Join rows of shards, which have as many tensors as one of them."""
    merged = _merged_rows(parts)
    # Shards of one tensor are one tensor: all else in a row counts elements.
    merged[..., NUM_TENSORS] = parts[0][..., NUM_TENSORS]
    return merged


def _merged_sums(parts: Sequence[SampleSum]) -> SampleSum:
    sums = [total for total, _ in parts if total is not None]
    # A sum that lacks a part would be a mean of other samples than it says.
    if len(sums) < len(parts) or len({total.shape for total in sums}) > 1:
        return SampleSum()
    return SampleSum(np.sum(sums, axis=0), sum(number for _, number in parts))


def _joined_sums(parts: Sequence[SampleSum], dim: int | None) -> SampleSum:
    """Join sums of shards, which are cut along the samples or along a dim of each."""
    sums = [total for total, _ in parts if total is not None]
    if len(sums) < len(parts) or dim is None:
        return SampleSum()
    # The sum over samples has lost dim 0, the one of the samples.
    at = dim % (sums[0].ndim + 1)
    if at == 0:
        return _merged_sums(parts)
    return SampleSum(np.concatenate(sums, at - 1), parts[0].num_samples)


def _joined_shape(parts: Sequence[Shape | None], dim: int | None) -> Shape | None:
    shapes = [shape for shape in parts if shape]
    if len(shapes) < len(parts) or dim is None:
        return None
    joined = list(shapes[0])
    joined[dim] = sum(shape[dim] for shape in shapes)
    return tuple(joined)


def common(parts: Iterable[T], otherwise: T) -> T:
    """Return what all parts have in common, or ``otherwise`` where they differ."""
    distinct = set(parts)
    return distinct.pop() if len(distinct) == 1 else otherwise


ROWS: Algebra[Rows] = Algebra(_merged_rows, _joined_rows)
"""Rows of one step, ``float64[16]``, or of several steps, ``float64[steps, 16]``."""
HISTOGRAMS: Algebra[Histogram] = Algebra(merged_together, lambda parts, dim: merged_together(parts))
SUMS: Algebra[SampleSum] = Algebra(_merged_sums, _joined_sums)
SHAPES: Algebra[Shape | None] = Algebra(lambda parts: common(parts, None), _joined_shape)
"""Shapes of all tensors of a site; ``None`` where they differ."""


# ---------------------------------------------------------------------- states of statistics


def merge_states(statistics: Sequence[Statistic], parts: Iterable[States | None]) -> States | None:
    """Merge the states of steps that follow one another; ``None`` where no part is there."""
    merged: States | None = None
    for new in parts:
        if merged is None or new is None:
            merged = merged if new is None else new
        else:
            every = zip(statistics, merged, new, strict=True)
            merged = [_unless_missing(one.merge, a, b) for one, a, b in every]
    return merged


def of_ranks(statistic: Statistic, num_dims: int | None) -> Algebra[Any]:
    """Return the algebra of the states of one statistic on several ranks, in the same steps.

    Args:
        statistic: whose states they are.
        num_dims: of its tensors; ``None`` where that is not known.
    """

    def beside(one: Any, two: Any) -> Any:
        return _unless_missing(partial(merge_ranks, statistic), one, two)

    def join(parts: Sequence[Any], dim: int | None) -> Any:
        where = (None, None) if dim is None or num_dims is None else (dim % num_dims, num_dims)

        def shards(one: Any, two: Any) -> Any:
            return merge_shards(statistic, one, two, *where)

        return reduce(partial(_unless_missing, shards), parts)

    return Algebra(partial(reduce, beside), join)


def _unless_missing(merge: Callable[[Any, Any], Any], one: Any, two: Any) -> Any:
    """Merge two states; where one of them is missing, so is the whole."""
    lost = next((state for state in (one, two) if isinstance(state, Missing)), None)
    return merge(one, two) if lost is None else lost
