"""Signals that arrive between two lines of ours."""

from __future__ import annotations

import os
import threading
from types import FrameType

from torchtap.core.stack_frames import is_inside_own

_RETRY_SECONDS, _MOST_RETRIES = 0.01, 200


class Postponing:
    """Sends a signal once more where it finds this process inside of torchtap.

    A handler that saves what was recorded would read there what is half written, and would wait for
    ever for a lock that its own thread holds.
    """

    def __init__(self) -> None:
        self._num_retries = 0

    def postpones(self, number: int, frame: FrameType | None) -> bool:
        """Return whether the signal comes again in a moment; for two seconds at most.

        Args:
            number: of the signal.
            frame: that it interrupted.
        """
        if self._num_retries == _MOST_RETRIES or not is_inside_own(frame):
            return False
        self._num_retries += 1
        timer = threading.Timer(_RETRY_SECONDS, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()
        return True
