"""Values that were selected and not seen, each with the reason, and their printed list.

A reason is a sentence for people, in files of every version; its code, a word for programs, is read
off the words that the sentence is built from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torchtap.core.printed import Printed
from torchtap.core.site import Site
from torchtap.core.text import clean, count, elide, plural

if TYPE_CHECKING:
    from torchtap.core.printed_page import Page, Part

MOST_ROWS = 40
_MOST_REASONS = 3
_BY_WORDS = (
    ("of evaluation forwards", "evaluation"),
    ("do not hold it", "not_in_optimizer"),
    ("GradScaler skipped the step", "scaled_away"),
    ("does not require grad", "no_grad_required"),
    ("grad mode was off", "grad_mode_off"),
    ("no optimizer made a step", "no_step"),
    ("no gradient arrived", "no_gradient"),
    ("no backward reached", "no_gradient"),
    ("it has no gradient", "no_gradient"),
    ("was paused", "paused"),
    ("it has no forward", "container"),
    ("was not called", "not_called"),
    ("was compiled", "compiled"),
    ("compiled graph", "compiled"),
    ("only parts further inside", "not_called"),
    ("owns none that fits", "no_state"),
    ("no tensor that fits", "no_tensor"),
    ("use a tuple, list, dict or dataclass", "not_looked_into"),
    ("raised", "raised"),
    ("tt.mark", "no_mark"),
    ("was overwritten", "overwritten"),
    ("nothing in it is kept for backward", "nothing_saved"),
    ("inside a backward", "in_backward"),
    ("takes no hooks", "no_hooks"),
    ("taken out of the model", "moved"),
    ("the module stands at", "moved"),
    ("rank", "ranks"),
    ("meta tensor", "no_values"),
    ("fake tensor", "no_values"),
    ("max_bytes", "no_room"),
)
"""Words of a reason, and its code; the first that are found count."""
CODES = frozenset((*(code for _, code in _BY_WORDS), "other"))
WHOLE_RUN = Site("", "output")
"""The site of what is said of the whole run: its root, which has an output of its own too."""


def code_of(reason: str) -> str:
    """Return the code of a reason: one of :data:`CODES`, ``other`` where it has none of its own.

    Example:
        >>> code_of("it does not require grad")
        'no_grad_required'
    """
    return next((code for words, code in _BY_WORDS if words in reason), "other")


class Absence(NamedTuple):
    """Something that was selected and never seen, with the reason.

    Example:
        >>> import torch, torchtap as tt
        >>> linear = torch.nn.Linear(2, 1)
        >>> with tt.watch(linear, ".:grad_output") as w:
        ...     _ = linear(torch.ones(3, 2))  # And no backward.
        >>> w.absent[0].code
        'no_gradient'
    """

    site: Site
    reason: str

    @property
    def code(self) -> str:
        """Return the reason as a word for programs, such as ``not_called`` or ``no_grad_required``.

        :data:`torchtap.core.absence.CODES` has all of them.
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
    """Return every reason once, and below it its sites.

    Args:
        absent: what was selected and not seen.
        limit: most sites of one reason; ``None`` for all.
    """
    from torchtap.core.printed_page import Line, Listed, Page, middle

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
    from torchtap.core.printed_page import BLANK, Listed

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
    """Return the first two sites of each reason and how many more there are, and the reason."""
    rows = []
    for reason, sites in reasons.items():
        more = f" and {count(len(sites) - 2)} more" if len(sites) > 2 else ""
        rows.append((", ".join(elide(site, 40) for site in sites[:2]) + more, reason))
    return rows
