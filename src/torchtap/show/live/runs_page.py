"""The page that lists several runs under one folder."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from torchtap.core.text import clean, count
from torchtap.show.live.run_state import RunState

_STYLE = (
    ":root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}"
    "body{max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}caption{text-align:left;padding:.5rem 0}"
    "th,td{text-align:left;padding:.4rem .8rem .4rem 0;border-bottom:1px solid #8886;"
    "overflow-wrap:anywhere}"
    "td.step{text-align:right;font-variant-numeric:tabular-nums}"
    "th[scope=row]{font-weight:400}"
)
_EVERY = 5
"""Seconds after which a browser asks for the list again."""


class ListedRun(NamedTuple):
    """A run in the list.

    Attributes:
        number: under which its page is.
        name: its path below the folder.
        state: of it; ``None`` where it cannot be told.
    """

    number: int
    name: str
    state: RunState | None


def runs_page(folder: str, runs: Sequence[ListedRun], token: str) -> str:
    """Return the page as HTML; it works without scripts and asks for nothing else.

    Args:
        folder: its name, as it is shown.
        runs: what is in it.
        token: of the server, for the links.
    """
    rows = "".join(_row(run, token) for run in runs)
    table = (
        f"<table><caption>{len(runs):,} runs</caption><thead><tr>"
        '<th scope="col">Run</th><th scope="col">State</th><th scope="col">Step</th>'
        f'<th scope="col">Why</th></tr></thead><tbody>{rows}</tbody></table>'
        if runs
        else "<p>There is no run here so far.</p>"
    )
    title = escape(clean(folder))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="refresh" content="{_EVERY}">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body><main><h1>{title}</h1>{table}</main></body>\n</html>\n"
    )


def policy_of_list() -> str:
    """Return the content security policy of the list: nothing but its own style."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    rest = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return f"default-src 'none'; style-src 'sha256-{digest}'; {rest}"


def _row(one: ListedRun, token: str) -> str:
    state = one.state
    name, why = ("?", "") if state is None else (state.name, state.reason)
    step = "" if state is None or state.step is None else count(state.step)
    link = f"run/{one.number}/?token={escape(token)}"
    return (
        f'<tr><th scope="row"><a href="{link}">{escape(clean(one.name))}</a></th>'
        f'<td>{escape(name)}</td><td class="step">{step}</td><td>{escape(clean(why))}</td></tr>'
    )
