"""Numbers the calls of one module within a step. The native ones (``calls.c``) do the same."""

from __future__ import annotations

import itertools
import threading
from collections import deque

from torchtap.core.shared_state import new_lock
from torchtap.core.torch_private import current_task


class StepCounter:
    """Counts the steps of one engine, which the numbers of all its taps look at.

    Attributes:
        current: one more with every step.
    """

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current = 0

    def new_numbers(self) -> CallNumbers:
        """Make the numbers of the calls of a module."""
        return CallNumbers(self)


class CallNumbers:
    """An iterator over the numbers of the calls of one module, from 0 in each step.

    ``next`` returns the number that :meth:`enter` drew for the innermost call in which this thread
    is. If there is none it draws a new one: a pre-hook asks as the call is entered, or the module
    cannot call itself. It looks at the step itself, so that nothing has to be done for each module
    as a step begins.

    Args:
        steps: of the engine.
    """

    __slots__ = ("_count", "_entered", "_lock", "_step", "_steps")

    def __init__(self, steps: StepCounter) -> None:
        self._steps = steps
        self._lock = new_lock()
        self._restart()

    def _restart(self) -> None:
        """Begin again with 0, once for all threads that call the module at this moment."""
        with self._lock:
            step = self._steps.current
            if getattr(self, "_step", None) != step:
                self._entered: _Entered | None = None
                self._count = itertools.count()
                self._step = step

    def __iter__(self) -> CallNumbers:
        return self

    def __next__(self) -> int:
        if self._step != self._steps.current:
            self._restart()
        entered = self._entered
        if entered is not None and entered.numbers:
            return entered.numbers.pop()
        # No number was drawn: there is no counter, or the call began before the hooks were put on.
        return next(self._count)

    def enter(self) -> None:
        """Draw the number of a call as it is entered; ``next`` returns it when the call is left.

        Inside a backward nothing is drawn: a call that a checkpoint runs again has its number.

        A module that calls itself leaves the innermost call first, so counting at the end would
        number the inner call before the outer one.
        """
        if current_task() != -1:
            return
        if self._step != self._steps.current:
            self._restart()
        if self._entered is None:
            with self._lock:
                self._entered = self._entered or _Entered()
        self._entered.numbers.append(next(self._count))


class _Entered(threading.local):
    """Numbers of the calls that a thread is inside of; an interrupt leaves its own behind."""

    def __init__(self) -> None:
        self.numbers: deque[int] = deque(maxlen=1 << 12)
