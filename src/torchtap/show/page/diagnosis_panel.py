"""The section of a page that says what is wrong with the training, as ``tt.diagnose`` does."""

from __future__ import annotations

from collections.abc import Iterator

from torchtap.core.site import Site
from torchtap.runs.rules.diagnose import diagnose
from torchtap.runs.rules.diagnosis import said
from torchtap.runs.rules.finding import Finding
from torchtap.runs.run import Run
from torchtap.show.page import highlights
from torchtap.show.page.sections import Section
from torchtap.show.page.static_pictures import safe

_PORTS = ("output", "grad_output", "param_grad", "param", "update", "input")
"""Ports of a module's sites, the one that is opened first."""


def diagnosis_section(run: Run) -> Section:
    """Say what rules find in a run: the first finding with its evidence, the others below.

    Each links to a site of its module in the step in which it began.
    """
    found = diagnose(run)
    items = "".join(_item(run, finding) for finding in found.findings)
    listed = f'<ol class="findings">{items}</ol>' if items else "<p>Nothing was found.</p>"
    failed = "".join(
        f"<p>The rule {safe(name)} raised {safe(what)}.</p>" for name, what in found.failed.items()
    )
    silent = "".join(f"<li>{safe(one)}</li>" for one in found.silent)
    notes = f"<h3>Not looked at</h3><ul>{silent}</ul>" if silent else ""
    return Section("diagnosis", "Findings", f"<h2>Findings</h2>{listed}{failed}{notes}")


def _item(run: Run, one: Finding) -> str:
    tone = "bad" if one.is_alarm else "warn"
    step = one.steps[0] if one.steps else None
    address = highlights.Highlight("", tone, _site(run, one.path), step).address
    name = f"{one.severity}: {one.rule} at {one.path}{one.when}"
    head = f'<a href="{safe(address)}">{safe(name)}</a>' if address else safe(name)
    figures = "; ".join(f"{key} {said(value)}" for key, value in one.evidence.items())
    return (
        f'<li class="{tone}"><strong>{head}</strong><br>{safe(one.text)}.<br>{safe(one.advice)}'
        f"<br><small>{safe(figures)}</small></li>"
    )


def _site(run: Run, path: str) -> str:
    """Return the text of a site of a module that the page has; empty where there is none."""
    return next(map(str, _sites(run, "" if path == "." else path)), "")


def _sites(run: Run, path: str) -> Iterator[Site]:
    own = [site for site in run.sites if site.path == path]
    for port in _PORTS:
        yield from (site for site in own if site.port == port)
