"""When what was recorded is saved again, while a script runs."""

from __future__ import annotations

import time
from collections.abc import Callable

_MOST_SECONDS = 30.0
_MOST_LOST = 0.1
_MOST_SHARE = 0.02
"""A process that dies at once may lose so many seconds, or this share of its steps. Saving
takes no more than that share of the time."""


class Cadence:
    """After the first step, and then ever more rarely, up to every 30 seconds."""

    def __init__(self) -> None:
        self._first = self._next = 0.0

    def run(self, save: Callable[[], object]) -> None:
        """Save, where it is time to."""
        began = time.perf_counter()
        if began < self._next:
            return
        self._first = self._first or began
        save()
        now = time.perf_counter()
        wait = min(_MOST_SECONDS, (now - self._first) * _MOST_LOST)
        # Saving takes at most this share of the time, however slow the disk is.
        self._next = now + max(wait, (now - began) / _MOST_SHARE)
