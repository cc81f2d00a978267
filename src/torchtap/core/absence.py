"""Values that were selected and not seen, each with the reason, and their printed list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torchtap.core.absence_codes import code_of
from torchtap.core.printed_page import BLANK, Line, Listed, Page, Part, Printed, middle
from torchtap.core.site import Site
from torchtap.core.text import clean, count, elide, plural

MOST_ROWS = 40
_MOST_REASONS = 3


WHOLE_RUN = Site("", "output")
"""The site of what is said of the whole run: its root, which has an output of its own too."""


class Absence(NamedTuple):
    """Something that was selected and never seen, with the reason."""

    site: Site
    reason: str

    @property
    def code(self) -> str:
        """The reason as a word for programs, such as ``not_called`` or ``no_grad_required``.

        :data:`torchtap.core.absence_codes.CODES` has all of them.
        """
        return code_of(self.reason)

    def __str__(self) -> str:
        return f"{self.site}: {self.reason}"


class Absences(Printed, list[Absence]):
    """A list of absences that prints as a table: each reason once, with its sites."""

    __slots__ = ()

    def _page(self) -> Page:
        return show_absences(self)


def show_absences(absent: Sequence[Absence], *, limit: int | None = MOST_ROWS) -> Page:
    """Every reason once, and below it its sites.

    Args:
        absent: what was selected and not seen.
        limit: most sites of one reason; ``None`` for all.
    """
    if not absent:
        return Page(Line("Nothing is absent."))
    reasons = by_reason(absent)
    rows = []
    for reason, sites in reasons.items():
        front, left_out, back = middle(sites, limit)
        between = [f"… {count(left_out)} more …"] if left_out else []
        rows.append((reason, ", ".join([*front, *between, *back])))
    total = f"{plural(len(absent), 'site')} absent, {plural(len(reasons), 'reason')}"
    return Page(Line(total, "head"), Listed(rows, is_below=True))


def show_absent(absent: Sequence[Absence]) -> list[Part]:
    """Below a report: how many sites are absent, and the first few reasons, each with its sites."""
    if not absent:
        return []
    reasons = by_reason(absent)
    further = len(reasons) - _MOST_REASONS
    return [
        BLANK,
        Listed(
            reason_rows(reasons)[:_MOST_REASONS],
            title=f"{plural(len(absent), 'site')} absent:",
            tone="dim",
            more=f"and {plural(further, 'further reason')}" if further > 0 else "",
        ),
    ]


def by_reason(absent: Iterable[Absence]) -> dict[str, list[str]]:
    """Reason -> its sites as text, in the order in which they come."""
    reasons: dict[str, list[str]] = {}
    for entry in absent:
        reasons.setdefault(entry.reason, []).append(clean(str(entry.site)))
    return reasons


def reason_rows(reasons: dict[str, list[str]]) -> list[tuple[str, str]]:
    """The first two sites of each reason and how many more there are, and the reason."""
    rows = []
    for reason, sites in reasons.items():
        more = f" and {count(len(sites) - 2)} more" if len(sites) > 2 else ""
        rows.append((", ".join(elide(site, 40) for site in sites[:2]) + more, reason))
    return rows
