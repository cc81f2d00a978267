"""Runs as HTML for notebooks. Every text is escaped; nothing is loaded or run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from torchtap.view.cells import clean, count, middle, plural, shape, size

if TYPE_CHECKING:
    from torchtap.record import Absence
    from torchtap.store.listing import SiteEntry
    from torchtap.store.run import Run

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
    from torchtap.store.listing import list_run

    listing = list_run(run)
    name = f"Run of {listing.model}" if listing.model else "Run"
    if not listing.sites:
        said = f"<p>{_text(name)}: empty, nothing was recorded.</p>"
        return f"<div>{said}{_absent(listing.absent)}</div>"
    caption = (
        f"{name}: {plural(len(listing.sites), 'site')}, {plural(listing.num_records, 'record')}, "
        f"{plural(len(listing.steps), 'step')}, {size(listing.nbytes)}"
    )
    rows = [_row(entry) for entry in listing.sites]
    return f"<div>{_table(caption, rows)}{_absent(listing.absent)}</div>"


def _table(caption: str, rows: Sequence[str]) -> str:
    front, left_out, back = middle(rows, _MOST_ROWS)
    gap = (
        [f'<tr><td colspan="{len(_HEADERS)}" style="{_LEFT}">… {count(left_out)} more …</td></tr>']
        if left_out
        else []
    )
    head = "".join(f'<th scope="col" style="{style}">{name}</th>' for name, style in _HEADERS)
    return (
        f'<table><caption style="{_LEFT}">{_text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join([*front, *gap, *back])}</tbody></table>"
    )


def _row(entry: SiteEntry) -> str:
    cells: Iterable[str] = (
        "varies" if entry.shape is None else shape(entry.shape),
        entry.dtype,
        count(entry.calls),
        count(entry.steps),
        size(entry.nbytes),
    )
    styles = [style for _, style in _HEADERS[1:]]
    body = "".join(
        f'<td style="{style}">{_text(cell)}</td>' for cell, style in zip(cells, styles, strict=True)
    )
    return f'<tr><th scope="row" style="{_LEFT}">{_text(str(entry.site))}</th>{body}</tr>'


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
