"""Rows of an index that come again from step to step, kept once. Knows nothing of torch.

Most steps write what the step before wrote, a place further on in each file. A *block* is a stretch
of such steps: of its first step every column is kept, and of the steps after it how much step,
offset and row grow each time. Steps that resemble no neighbour are a block that is not repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

GROWING = ("step", "offset", "row")
"""Columns that grow evenly within a block; all others are the same in each repetition."""
_WIDTHS = (np.int8, np.int16, np.int32)
_MOST = 1 << 62
Column = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of rows that are repeated.

    Attributes:
        starts: ``int64[blocks + 1]``, the first row of each, and at the end the number of rows.
        periods: ``int64[blocks]``, how many rows a repetition has.
        bases: ``int64[blocks]``, where the rows of the first repetition stand among those that are
            kept.
    """

    starts: NDArray[np.int64]
    periods: NDArray[np.int64]
    bases: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rows, with repetitions."""
        return int(self.starts[-1])

    @property
    def times_of_rows(self) -> NDArray[np.int64]:
        """The number of repetitions of each row that is kept."""
        return np.repeat(np.diff(self.starts) // self.periods, self.periods)

    def find(self, rows: Any) -> tuple[Any, Any]:
        """Return where rows stand among those that are kept, and in which repetition they are."""
        block = np.searchsorted(self.starts, rows, side="right") - 1
        times, within = np.divmod(rows - self.starts[block], self.periods[block])
        return self.bases[block] + within, times

    def is_sound(self, num_kept: int) -> bool:
        """Return whether the blocks fit together, and to that many rows that are kept."""
        if len(self.starts) != len(self.periods) + 1 or len(self.bases) != len(self.periods):
            return False
        if self.starts[0] != 0 or (self.periods < 1).any():
            return False
        lengths = np.diff(self.starts)
        is_whole = (lengths > 0) & (lengths % np.maximum(self.periods, 1) == 0)
        ends = np.cumsum(self.periods)
        is_next = np.array_equal(self.bases, ends - self.periods)
        return bool(is_whole.all()) and is_next and (int(ends[-1]) if len(ends) else 0) == num_kept


class BlockColumn:
    """One column, of which the rows that are asked for are computed.

    Args:
        blocks: which rows repeat which.
        kept: the rows that are kept.
        growth: how much each grows from one repetition to the next; ``None`` if it does not.
        kind: dtype of the column.
    """

    def __init__(self, blocks: Blocks, kept: Column, growth: Column | None, kind: Any) -> None:
        self._blocks = blocks
        self._kept = kept
        self._growth = growth
        self.dtype = np.dtype(kind)

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, rows: Any) -> Any:
        """Some rows: a number, an array of numbers, a slice or a mask."""
        if isinstance(rows, slice):
            return np.asarray(self)[rows]
        if isinstance(rows, np.ndarray) and (rows.dtype == bool or 4 * len(rows) > len(self)):
            return np.asarray(self)[rows]  # Of many rows that is quicker.
        places, times = self._blocks.find(rows)
        values = self._kept[places].astype(self.dtype)
        if self._growth is not None:
            values = values + times * self._growth[places].astype(np.int64)
        return values.astype(self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Column:
        """All rows."""
        blocks = self._blocks
        found = np.empty(len(blocks), self.dtype)
        growth = self._growth
        for start, end, period, base in zip(
            blocks.starts[:-1].tolist(),
            blocks.starts[1:].tolist(),
            blocks.periods.tolist(),
            blocks.bases.tolist(),
            strict=True,
        ):
            part = found[start:end].reshape(-1, period)
            part[:] = self._kept[base : base + period]
            if growth is not None and len(part) > 1:
                part += np.arange(len(part))[:, None] * growth[base : base + period].astype(
                    self.dtype
                )
        return found if dtype is None else found.astype(dtype, copy=False)

    def min(self) -> Any:
        """The smallest number."""
        # Rows grow evenly, so the extremes are in the first repetition or in the last.
        return self.dtype.type(min(self._kept.min(), self.last().min()))

    def max(self) -> Any:
        """The largest number."""
        return self.dtype.type(max(self._kept.max(), self.last().max()))

    def last(self) -> Column:
        """The last repetition of each row that is kept."""
        if self._growth is None or not self._growth.any():
            return self._kept
        times = self._blocks.times_of_rows - 1
        ends: Column = self._kept.astype(self.dtype) + times * self._growth
        return ends

    def recoded(self, codes: Column) -> BlockColumn:
        """Return the same rows, with each number replaced by the one at its place in ``codes``."""
        # Numbers that stand for entries of a table do not grow from step to step.
        return BlockColumn(self._blocks, codes[self._kept], None, self.dtype)

    def head(self, count: int) -> BlockColumn:
        """The first rows."""
        blocks, growth = self._blocks, self._growth
        last = int(np.searchsorted(blocks.starts[1:], count))  # The block in which they end.
        if last == len(blocks.periods):
            return self
        base, period = int(blocks.bases[last]), int(blocks.periods[last])
        # Three parts: the blocks before, the whole repetitions of the block that is cut, and the
        # rows of its broken one.
        times = int(count - blocks.starts[last]) // period
        whole = Blocks(blocks.starts[: last + 1], blocks.periods[:last], blocks.bases[:last])
        own = np.array([0, times * period] if times else [0], dtype=np.int64)
        some = Blocks(own, np.full(len(own) - 1, period), np.zeros(len(own) - 1, dtype=np.int64))
        rows = np.arange(int(blocks.starts[last]) + times * period, count)
        ends = [(whole, slice(0, base)), (some, slice(base, base + period if times else base))]
        parts = [
            BlockColumn(one, self._kept[at], None if growth is None else growth[at], self.dtype)
            for one, at in ends
        ]
        return BlockColumn.chained([*parts, BlockColumn.of_rows(self[rows].astype(self.dtype))])

    def distinct(self) -> Column:
        """Its distinct numbers, of a column that does not grow."""
        return np.unique(self._kept)

    @staticmethod
    def of_rows(rows: Column) -> BlockColumn:
        """Rows as one block that is not repeated."""
        ends = np.array([0, len(rows)] if len(rows) else [0], dtype=np.int64)
        blocks = Blocks(ends, ends[1:], np.zeros(len(ends) - 1, dtype=np.int64))
        return BlockColumn(blocks, rows, None, rows.dtype)

    @staticmethod
    def chained(parts: Sequence[BlockColumn]) -> BlockColumn:
        """The rows of several, one after the other."""
        blocks = [part._blocks for part in parts]
        starts = np.cumsum([0, *map(len, blocks)])
        ends = [one.starts[1:] + start for one, start in zip(blocks, starts, strict=False)]
        periods = np.concatenate([block.periods for block in blocks])
        growth = None
        if any(part._growth is not None for part in parts):
            zeros = (np.zeros(len(part._kept), dtype=np.int64) for part in parts)
            known = zip(parts, zeros, strict=True)
            growth = np.concatenate([b if a._growth is None else a._growth for a, b in known])
        whole = Blocks(
            np.concatenate([np.zeros(1, dtype=np.int64), *ends]),
            periods,
            np.cumsum(periods) - periods,
        )
        kept = np.concatenate([part._kept for part in parts])
        return BlockColumn(whole, kept, growth, parts[0].dtype)


def narrow(column: Column) -> Column:
    """Return whole numbers in the narrowest dtype that has them all."""
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    for kind in _WIDTHS:
        bounds = np.iinfo(kind)
        if bounds.min <= low and high <= bounds.max:
            return column.astype(kind)
    return column.astype(np.int64)


def blocks_of(columns: Mapping[str, Column]) -> tuple[Blocks, NDArray[np.int64]]:
    """Find the blocks of some columns, which have a ``step``.

    Returns:
        the blocks, and which rows are kept.
    """
    steps = columns["step"]
    if not len(steps):
        nothing = np.zeros(0, dtype=np.int64)
        return Blocks(np.zeros(1, dtype=np.int64), nothing, nothing), nothing
    starts = np.concatenate([[0], np.flatnonzero(np.diff(steps)) + 1]).astype(np.int64)
    lengths = np.diff(np.append(starts, len(steps)))
    is_alike, is_even = _compared(columns, starts, lengths)
    first = _first_steps(is_alike, is_even)
    num_steps = np.diff(np.append(first, len(starts)))
    # Neighbours that are not repeated are one block.
    is_first = np.ones(len(first), dtype=bool)
    is_first[1:] = (num_steps[1:] > 1) | (num_steps[:-1] > 1)
    begins = starts[first[is_first]]
    ends = np.append(begins, len(steps))
    periods = np.where(num_steps[is_first] > 1, lengths[first[is_first]], np.diff(ends))
    bases = np.cumsum(periods) - periods
    within = np.arange(int(periods.sum())) - np.repeat(bases, periods)
    return Blocks(ends, periods, bases), np.repeat(begins, periods) + within


def growth_of(blocks: Blocks, kept: NDArray[np.int64], column: Column) -> Column:
    """Return how much each row that is kept grows from one repetition to the next."""
    is_repeated = blocks.times_of_rows > 1
    rows = kept[is_repeated]
    growth = np.zeros(len(kept), dtype=np.int64)
    later = rows + np.repeat(blocks.periods, blocks.periods)[is_repeated]
    growth[is_repeated] = column[later] - column[rows]
    return growth


def grows_safely(blocks: Blocks, growths: Iterable[Column]) -> bool:
    """Return whether every repetition of every row stays within the numbers of 64 bits."""
    times = blocks.times_of_rows
    rows = times > 1
    times = times[rows]
    return all(
        # In float64, where the product of two large numbers cannot wrap around.
        bool((np.abs(growth[rows].astype(np.float64)) * times < _MOST).all())
        for growth in growths
    )


def _compared(
    columns: Mapping[str, Column], starts: Column, lengths: Column
) -> tuple[Column, Column]:
    """Return for each step whether it repeats the one before, and whether it grows as that did."""
    is_alike = np.zeros(len(starts), dtype=bool)
    is_alike[1:] = lengths[1:] == lengths[:-1]
    of_step = np.repeat(np.arange(len(starts), dtype=np.int32), lengths)
    rows = np.flatnonzero(is_alike[of_step])
    before = rows - lengths[of_step[rows]]
    is_same = np.ones(len(rows), dtype=bool)
    for name, column in columns.items():
        # The checksums of values differ in each step and are stored for each row.
        if name not in (*GROWING, "crc32"):
            is_same &= column[rows] == column[before]
    is_alike[of_step[rows[~is_same]]] = False
    is_even = is_alike.copy()
    # Even growth takes three steps to be seen: two differences that are equal.
    is_even[1:] &= is_alike[:-1]
    rows = np.flatnonzero(is_even[of_step])
    by = lengths[of_step[rows]]
    is_same = np.ones(len(rows), dtype=bool)
    for name in GROWING:
        column = columns[name]
        is_same &= column[rows] - column[rows - by] == column[rows - by] - column[rows - 2 * by]
    is_even[of_step[rows[~is_same]]] = False
    return is_alike, is_even


def _first_steps(is_alike: Column, is_even: Column) -> NDArray[np.int64]:
    """The steps with which blocks begin: as few as there can be."""
    found, begin = [0], 0
    for step in np.flatnonzero(~(is_alike & is_even)).tolist():
        # The second step of a block says by how much it grows, so it needs only be alike.
        if step and not (is_alike[step] and step == begin + 1):
            found.append(step)
            begin = step
    return np.array(found, dtype=np.int64)
