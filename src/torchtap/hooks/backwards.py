"""Numbers the backward passes of a step, and says when one has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd import Variable

from torchtap.hooks.callbacks import keep_dynamo_out

_REMEMBERED = 1024

current_task = torch._C._current_graph_task_id
"""Number of the backward that this thread is inside of, -1 outside."""


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Call ``function`` when the backward that this thread is inside of has ended well."""
    engine: Any = Variable._execution_engine
    engine.queue_callback(function)


class Backwards:
    """The backward passes seen so far in the running step.

    A backward inside another (a reentrant checkpoint runs one per segment) is part of it.

    Args:
        ended: called at the end of each outermost backward.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._numbers: dict[int, int] = {}
        self._local = threading.local()

    def number(self) -> int:
        """Number, from 0, of the backward that is running."""
        task = current_task()
        number = self._numbers.get(task)
        return self._begin(task) if number is None else number

    def restart(self) -> None:
        """A new step: numbers start again."""
        self._numbers.clear()
        self.forget_failed()

    def forget_failed(self) -> None:
        """A backward that raised has not signed off. To be called outside of any."""
        self._running().clear()

    def _begin(self, task: int) -> int:
        running = self._running()
        if running:
            number = self._numbers[running[0]]
        else:
            number = 1 + max(self._numbers.values(), default=-1)
        if len(self._numbers) >= _REMEMBERED:  # A program that never steps stays flat in memory.
            for old in list(self._numbers)[: _REMEMBERED // 2]:
                del self._numbers[old]
        self._numbers[task] = number
        running.append(task)
        at_end_of_backward(partial(self._end, running, task))
        return number

    def _end(self, running: list[int], task: int) -> None:
        if task in running:
            running.remove(task)
        if not running:
            self._ended()

    def _running(self) -> list[int]:
        try:
            return self._local.running  # type: ignore[no-any-return]
        except AttributeError:
            self._local.running = []
            return self._local.running  # type: ignore[no-any-return]


keep_dynamo_out(Backwards._end)
