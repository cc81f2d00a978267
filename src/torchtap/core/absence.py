"""What was selected and not seen, with the reason, and how a list of it prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torchtap.core.site import Site
from torchtap.core.text import clean, count, elide, middle, paint, plural, wrap

if TYPE_CHECKING:
    pass


_MOST_ROWS = 40


_MOST_REASONS = 3


def show_absent(absent: Sequence[Absence], *, color: bool = False) -> list[str]:
    """How many sites are absent, and the first few reasons, each with its sites."""
    if not absent:
        return []
    reasons = by_reason(absent)
    lines = ["", f"{plural(len(absent), 'site')} absent:"]
    for reason, sites in list(reasons.items())[:_MOST_REASONS]:
        lines += reason_lines(reason, sites)
    if len(reasons) > _MOST_REASONS:
        lines.append(f"  and {plural(len(reasons) - _MOST_REASONS, 'further reason')}")
    return [paint(line, "dim", color=color) for line in lines]


def show_absences(
    absent: Sequence[Absence], *, limit: int | None = _MOST_ROWS, color: bool = False
) -> str:
    """Every reason once, and below it its sites.

    Args:
        absent: what was selected and not seen.
        limit: most sites of one reason; ``None`` for all.
        color: paint it.
    """
    if not absent:
        return "Nothing is absent."
    reasons = by_reason(absent)
    total = f"{plural(len(absent), 'site')} absent, {plural(len(reasons), 'reason')}"
    lines = [paint(total, "head", color=color)]
    for reason, sites in reasons.items():
        front, left_out, back = middle(sites, limit)
        between = [f"… {count(left_out)} more …"] if left_out else []
        lines += ["", *wrap(f"{clean(reason)}:")]
        lines += wrap(", ".join([*front, *between, *back]), first="  ", rest="  ")
    return "\n".join(lines)


def by_reason(absent: Iterable[Absence]) -> dict[str, list[str]]:
    """Reason -> its sites as text, in the order in which they come."""
    reasons: dict[str, list[str]] = {}
    for entry in absent:
        reasons.setdefault(entry.reason, []).append(clean(str(entry.site)))
    return reasons


def reason_lines(reason: str, sites: Sequence[str]) -> list[str]:
    """The first two sites, how many more there are, and why."""
    more = f" and {count(len(sites) - 2)} more" if len(sites) > 2 else ""
    named = ", ".join(elide(site, 40) for site in sites[:2])
    return wrap(f"{named}{more}: {clean(reason)}", first="  ", rest="    ")


def _cut(text: str, limit: int | None, noun: str) -> list[str]:
    head, *lines = text.split("\n")
    front, left_out, back = middle(lines, limit)
    between = [f"… {count(left_out)} more {noun}s …"] if left_out else []
    return [head, *front, *between, *back]


class Absence(NamedTuple):
    """Something that was selected and never seen, with the reason."""

    site: Site
    reason: str

    def __str__(self) -> str:
        return f"{self.site}: {self.reason}"


class Absences(list[Absence]):
    """A list of absences that prints as a table: each reason once, with its sites."""

    __slots__ = ()

    def __repr__(self) -> str:

        return show_absences(self)
