"""Scores the diagnosis of a case."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from trainings.case import Case

import torchtap as tt

WHERE = "*:*,param,param_grad,update"


@dataclass(frozen=True, slots=True)
class Scored:
    """One case: what was found, and what of it is right."""

    case: Case
    # The rule and place of each finding, the first first; and how many of them are alarms.
    findings: tuple[tuple[str, str | None], ...]
    alarms: int

    @property
    def is_right(self) -> bool:
        """Return whether the first finding is one of the accepted."""
        return bool(self.findings) and self.findings[0][0] in self.case.kinds

    @property
    def is_placed(self) -> bool:
        """Return whether its place is one of the accepted, or inside of one."""
        place = self.findings[0][1] if self.findings else None
        return place is not None and any(
            place == each or place.startswith(f"{each}.") for each in self.case.places
        )

    def __str__(self) -> str:
        found = ", ".join(f"{rule} at {path}" for rule, path in self.findings[:3]) or "nothing"
        wanted = " or ".join(self.case.kinds) or "nothing"
        place = f" at {' or '.join(self.case.places)}" if self.case.places else ""
        return f"{self.case.name}: {found}; planted {wanted}{place}"


def run_of(case: Case) -> tt.Run:
    """Train the case, watched with statistics alone."""
    runs: list[tt.Run] = []

    def watching(model: nn.Module) -> tt.Watch:
        watch = tt.watch(model, WHERE, to=tt.Stats())
        runs.append(watch.run)
        return watch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        case.train(watching)
    finally:
        torch.set_num_threads(before)
    return runs[0]


def scored(case: Case) -> Scored:
    """Train and diagnose."""
    diagnosis = tt.diagnose(run_of(case))
    findings = tuple((finding.rule, finding.path) for finding in diagnosis.findings)
    return Scored(case, findings, len(diagnosis.alarms))
