"""Trainings that are killed while the thread that writes is behind them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

from torchtap.runs.store.attempt import AttemptWriter


def killed_in(action: Callable[[], object]) -> None:
    """Run something in a process that kills itself in it; each commit takes 50 ms there.

    It is forked, so that its time goes into the training and not into importing torch.
    """
    process = os.fork()
    if not process:
        commit = AttemptWriter.commit

        def slow(self: AttemptWriter, one: Any) -> None:
            time.sleep(0.05)
            commit(self, one)

        AttemptWriter.commit = slow  # type: ignore[assignment, method-assign]
        try:
            action()
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL


def die() -> NoReturn:
    """End as a process that the system kills."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it lives")
