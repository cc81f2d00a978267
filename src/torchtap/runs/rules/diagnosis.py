"""The result of ``tt.diagnose``: one diagnosis with its evidence, and what else was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchtap.core.printed import Printed
from torchtap.core.printed_page import BLANK, Line, Listed, Page, Part
from torchtap.core.text import clean, plural
from torchtap.runs.rules.finding import Finding


@dataclass(frozen=True, repr=False)
class Diagnosis(Printed):
    """The findings of rules in a run. Printing it shows the first, and the others below.

    Attributes:
        findings: all of them, sorted: the root first, alarms before notes.
        failed: name of a rule that raised -> what it raised.
        silent: what the run lacks, so that some rules could say nothing.

    Example:
        >>> import torch, torchtap as tt
        >>> with tt.watch(torch.nn.Dropout(0.9), "*:*", to=tt.Stats()) as w:
        ...     _ = w.step()
        >>> len(tt.diagnose(w.run).alarms)
        0
    """

    findings: tuple[Finding, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    silent: tuple[str, ...] = ()

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """The findings that are alarms, the root first."""
        return tuple(one for one in self.findings if one.is_alarm)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """The findings that healthy trainings may show too."""
        return tuple(one for one in self.findings if not one.is_alarm)

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {
            "findings": [one.as_dict() for one in self.findings],
            "failed": dict(self.failed),
            "silent": list(self.silent),
        }

    def _page(self) -> Page:
        parts: list[Part] = []
        if not self.findings:
            parts.append(Line("Nothing was found.", "head"))
        else:
            parts += _first(self.findings[0])
        others = self.findings[1:]
        if others:
            rows = [(_name(one), clean(one.text)) for one in others]
            parts += [BLANK, Listed(rows, title="Also found:", tone="dim")]
        if self.failed:
            rows = [(name, clean(what)) for name, what in self.failed.items()]
            title = f"{plural(len(rows), 'rule')} raised, and said nothing:"
            parts += [BLANK, Listed(rows, title=title)]
        if self.silent:
            parts += [
                BLANK,
                *(Line(f"Note: {clean(one)}", "dim", rest="  ") for one in self.silent),
            ]
        return Page(*parts)


def _first(one: Finding) -> list[Part]:
    rows = [(name, clean(said(value))) for name, value in one.evidence.items()]
    parts: list[Part] = [
        Line(f"{_name(one)}{one.when}", "head", rest="  "),
        Line(clean(one.text), rest=""),
    ]
    if one.advice:
        parts.append(Line(clean(f"Try: {one.advice}"), rest=""))
    if rows:
        parts.append(Listed(rows, title="Evidence:", tone="dim"))
    return parts


def _name(one: Finding) -> str:
    place = "" if one.path == "." else f" at {one.path}"
    return clean(f"{one.severity}: {one.rule}{place}")


def said(value: Any) -> str:
    """Return a figure of the evidence as text."""
    if isinstance(value, list | tuple):
        shown = ", ".join(said(one) for one in value[:6])
        return shown + (f" and {len(value) - 6} more" if len(value) > 6 else "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)
