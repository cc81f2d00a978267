"""Runs as HTML for notebooks. Every text is escaped; nothing is loaded or run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from torchtap.core.text import clean, count, middle, plural, shape, size

if TYPE_CHECKING:
    from torchtap.core.absence import Absence
    from torchtap.core.site import Site
    from torchtap.runs.listing import Listing, MeasuredEntry, SiteEntry
    from torchtap.runs.run import Run

_MOST_ROWS = 60
_MOST_ABSENT = 20
_LEFT = "text-align:left"
_RIGHT = "text-align:right;font-variant-numeric:tabular-nums"
_HEADERS = (
    ("site", _LEFT),
    ("shape", _LEFT),
    ("dtype", _LEFT),
    ("calls", _RIGHT),
    ("steps", _RIGHT),
    ("bytes", _RIGHT),
)


def run_html(run: Run) -> str:
    """A run as a table, for a notebook."""
    from torchtap.runs.listing import list_run

    listing = list_run(run)
    name = f"Run of {listing.model}" if listing.model else "Run"
    if not listing.sites and not listing.measured:
        said = f"<p>{_text(name)}: empty, nothing was recorded.</p>"
        return f"<div>{said}{_absent(listing.absent)}</div>"
    caption = (
        f"{name}: {plural(len(listing.sites), 'site')}, {plural(listing.num_records, 'record')}, "
        f"{plural(len(listing.steps), 'step')}, {size(listing.nbytes)}"
    )
    kept = _table(caption, [_row(entry) for entry in listing.sites]) if listing.sites else ""
    return f"<div>{kept}{_measured(name, listing)}{_absent(listing.absent)}</div>"


def _measured(name: str, listing: Listing) -> str:
    if not listing.measured:
        return ""
    caption = (
        f"{name}: {plural(len(listing.measured), 'site')} measured in "
        f"{plural(listing.num_measured_steps, 'step')}; run.table() shows them."
    )
    return _table(caption, [_measured_row(entry) for entry in listing.measured], _HEADERS[:3])


def _table(caption: str, rows: Sequence[str], headers: Sequence[tuple[str, str]] = _HEADERS) -> str:
    front, left_out, back = middle(rows, _MOST_ROWS)
    gap = (
        [f'<tr><td colspan="{len(headers)}" style="{_LEFT}">… {count(left_out)} more …</td></tr>']
        if left_out
        else []
    )
    head = "".join(f'<th scope="col" style="{style}">{name}</th>' for name, style in headers)
    return (
        f'<table><caption style="{_LEFT}">{_text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join([*front, *gap, *back])}</tbody></table>"
    )


def _row(entry: SiteEntry) -> str:
    numbers = (count(entry.calls), count(entry.steps), size(entry.nbytes))
    return _line(entry.site, (shape(entry.shape), entry.dtype, *numbers))


def _measured_row(entry: MeasuredEntry) -> str:
    return _line(entry.site, (shape(entry.shape), entry.dtype))


def _line(site: Site, cells: Sequence[str]) -> str:
    body = "".join(
        f'<td style="{style}">{_text(cell)}</td>'
        for cell, (_, style) in zip(cells, _HEADERS[1:], strict=False)
    )
    return f'<tr><th scope="row" style="{_LEFT}">{_text(str(site))}</th>{body}</tr>'


def _absent(absent: Sequence[Absence]) -> str:
    if not absent:
        return ""
    items = "".join(f"<li>{_text(str(entry))}</li>" for entry in absent[:_MOST_ABSENT])
    more = len(absent) - _MOST_ABSENT
    rest = f"<li>and {count(more)} more</li>" if more > 0 else ""
    title = f"{plural(len(absent), 'site')} absent"
    return f"<details><summary>{title}</summary><ul>{items}{rest}</ul></details>"


def _text(text: str) -> str:
    return escape(clean(text))
