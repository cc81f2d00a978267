"""Asks rules about a run while it is watched, and warns of an alarm once."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

from torchtap.core.errors import TrainingWarning
from torchtap.core.stack_frames import outside_stacklevel
from torchtap.core.text import plural
from torchtap.runs.rules.diagnose import Rule, diagnose
from torchtap.runs.rules.finding import Finding
from torchtap.runs.run import Run

_FIRST = 8
_GROWTH = 1.25
"""A check reads all steps, so the next comes when there are a quarter more."""
_PAUSE = 20.0
"""Time between two checks over that of the last: all of them take a twentieth of a training."""


class LiveRules:
    """Rules that look at a growing run from time to time.

    Args:
        run: that grows.
        rules: functions of a view of it.

    Attributes:
        findings: of the last check, and alarms of earlier ones, as JSON has them.
    """

    def __init__(self, run: Run, rules: Sequence[Rule]) -> None:
        self.findings: tuple[dict[str, Any], ...] = ()
        self._run = run
        self._rules = rules
        self._num_steps, self._next = 0, _FIRST
        self._not_before = 0.0
        self._alarms: dict[tuple[str, str], Finding] = {}

    def after_step(self, step: int) -> None:
        """A step was closed: check where it is time."""
        self._num_steps += 1
        began = time.perf_counter()
        if self._num_steps >= self._next and began >= self._not_before:
            self._next = int(self._num_steps * _GROWTH) + 1
            try:
                self.check()
            finally:
                ended = time.perf_counter()
                self._not_before = ended + _PAUSE * (ended - began)

    def check(self) -> None:
        """Ask all rules, keep what they find, and warn of alarms that are new."""
        diagnosis = diagnose(self._run, rules=self._rules)
        new = [alarm for alarm in diagnosis.alarms if (alarm.rule, alarm.path) not in self._alarms]
        self._alarms |= {(alarm.rule, alarm.path): alarm for alarm in diagnosis.alarms}
        others = (
            finding
            for finding in diagnosis.findings
            if (finding.rule, finding.path) not in self._alarms
        )
        self.findings = tuple(other.as_dict() for other in (*self._alarms.values(), *others))
        if new:
            more = f" ({plural(len(new) - 1, 'further alarm')})" if len(new) > 1 else ""
            first = new[0]
            warnings.warn(
                f"{first.rule} at {first.path}{first.when}: {first.text}. {first.advice}{more}",
                TrainingWarning,
                stacklevel=outside_stacklevel(),
            )
