"""The free ranges of a file, or of a block of memory."""

from __future__ import annotations

import bisect


class FreeList:
    """Free ranges in ascending order; adjacent ones are joined.

    Example:
        >>> free = FreeList()
        >>> free.give(0, 100)
        >>> free.take(30), free.take(80)
        (0, None)
        >>> free.give(0, 30)
        >>> free.take(100)
        0
    """

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []

    @property
    def free(self) -> int:
        """Total length of the free ranges."""
        return sum(length for _, length in self._free)

    def take(self, length: int) -> int | None:
        """Allocate a range; returns its start, or ``None`` if no free range is long enough.

        The shortest that fits is cut, so that long ranges stay whole: every step of a training asks
        for the same lengths.
        """
        fitting = [(free, place) for place, (_, free) in enumerate(self._free) if free >= length]
        if not fitting:
            return None
        free, place = min(fitting)
        start = self._free[place][0]
        if free == length:
            del self._free[place]
        else:
            self._free[place] = start + length, free - length
        return start

    def give(self, start: int, length: int) -> None:
        """Free a range."""
        # Sorted by start, so the only ranges that can touch this one are its two neighbours.
        place = bisect.bisect(self._free, (start, length))
        if place < len(self._free) and self._free[place][0] == start + length:
            length += self._free.pop(place)[1]
        if place and sum(self._free[place - 1]) == start:
            start, before = self._free.pop(place - 1)
            length += before
            place -= 1
        self._free.insert(place, (start, length))
