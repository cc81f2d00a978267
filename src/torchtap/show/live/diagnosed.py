"""Asks rules about a run that goes on, from time to time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from torchtap.core.errors import TorchtapError
from torchtap.runs.open_run import open_run
from torchtap.runs.rules.diagnose import diagnose
from torchtap.runs.rules.finding import Finding, finding_of

_PAUSE = 5.0
"""Seconds between two looks at least."""
_SHARE = 20.0
"""A look that took a second is followed by twenty without one."""


class Diagnosed:
    """The findings in a run, as of the last look.

    Only statistics are read: of a run of values alone the rules would read all of them.

    Args:
        path: of the run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: Sequence[Finding] = ()
        self._next = 0.0

    def findings(self, now: float | None = None) -> Sequence[Finding]:
        """Return the findings, the root first; looks again where it is time.

        Args:
            now: seconds of a monotonic clock.
        """
        began = time.monotonic() if now is None else now
        if began >= self._next:
            self._found = self._look()
            took = 0.0 if now is not None else time.monotonic() - began
            self._next = began + max(_PAUSE, _SHARE * took)
        return self._found

    def _look(self) -> Sequence[Finding]:
        try:
            run = open_run(self._path)
            if run.series.steps:
                return diagnose(run).findings
            return tuple(map(finding_of, run.meta.findings))
        except (TorchtapError, OSError):  # It has just begun, or is being written.
            return self._found
