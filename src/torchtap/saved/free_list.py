"""Which stretches of a long line are free."""

from __future__ import annotations

import bisect


class FreeList:
    """Free stretches, in order; neighbours are one.

    Example:
        >>> room = Room()
        >>> room.give(0, 100)
        >>> room.take(30), room.take(80)
        (0, None)
        >>> room.give(0, 30)
        >>> room.take(100)
        0
    """

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []

    @property
    def free(self) -> int:
        """How much is free."""
        return sum(length for _, length in self._free)

    def take(self, length: int) -> int | None:
        """The start of a free stretch, which is free no more; ``None`` if none is long enough.

        The shortest that fits is cut, so that long ones stay whole: training asks for the same
        lengths over and over.
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
        """Free a stretch."""
        place = bisect.bisect(self._free, (start, length))
        if place < len(self._free) and self._free[place][0] == start + length:
            length += self._free.pop(place)[1]
        if place and sum(self._free[place - 1]) == start:
            start, before = self._free.pop(place - 1)
            length += before
            place -= 1
        self._free.insert(place, (start, length))
