"""A finding: one thing that is wrong with a training, its evidence, and what to try."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from torchtap.core.text import count

ALARM: Final = "alarm"
NOTE: Final = "note"
Severity = Literal["alarm", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of a rule: what is wrong, where, since when, and with which figures.

    Attributes:
        rule: name of the rule.
        severity: ``"alarm"``, or ``"note"`` for what healthy trainings may show too.
        path: of the module, ``.`` for the model.
        steps: that show it, ascending: the first and the last one, or each of a few.
        text: a sentence with the figures.
        evidence: the figures by name.
        advice: a sentence about what to try.
        follows: findings that it explains, once a diagnosis has sorted them.

    Example:
        >>> from torchtap import Finding
        >>> print(Finding("dead", "note", "1", (0, 9), "half of its units are 0"))
        note dead at 1, steps 0 to 9: half of its units are 0
    """

    rule: str
    severity: Severity
    path: str
    steps: tuple[int, ...]
    text: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""
    follows: tuple[Finding, ...] = ()

    @property
    def is_alarm(self) -> bool:
        """Return whether it is an alarm, and no note."""
        return self.severity == ALARM

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold; of the findings that it explains their rules and paths."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "path": self.path,
            "steps": list(self.steps),
            "text": self.text,
            "evidence": {name: _plain(value) for name, value in self.evidence.items()},
            "advice": self.advice,
            "follows": [{"rule": one.rule, "path": one.path} for one in self.follows],
        }

    def __str__(self) -> str:
        return f"{self.severity} {self.rule} at {self.path}{self.when}: {self.text}"

    @property
    def when(self) -> str:
        """The steps in words, with a comma before them."""
        if not self.steps:
            return ""
        first, last = count(self.steps[0]), count(self.steps[-1])
        return f", step {first}" if first == last else f", steps {first} to {last}"


def finding_of(body: Mapping[str, Any]) -> Finding:
    """Restore a finding from :meth:`Finding.as_dict`, without those that it explains."""
    return Finding(
        body["rule"],
        body["severity"],
        body["path"],
        tuple(body["steps"]),
        body["text"],
        dict(body["evidence"]),
        body["advice"],
    )


def _plain(value: Any) -> Any:
    """Return a figure as JSON has it: a number that is none as text."""
    if isinstance(value, bool | str | int) or value is None:
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    number = float(value)
    return number if math.isfinite(number) else str(number)
