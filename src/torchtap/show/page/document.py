"""Puts a page together: head with its policy, sections, data and scripts in one text."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from torchtap.show.page.graph_panel import GraphPanel
from torchtap.show.page.sections import Section
from torchtap.show.page.static_pictures import safe

_ASSETS = "torchtap.show.assets"
_SCRIPTS = ("uPlot.iife.min.js", "pattern.js", "charts.js", "pictures.js", "table.js", "page.js")
_STYLES = ("uPlot.min.css", "page.css")
_PLAIN = 200_000
"""Characters up to which data stand as plain JSON, where every program reads them."""


def document(
    title: str,
    subtitle: str,
    sections: Sequence[Section],
    data: dict[str, Any],
    *,
    panel: GraphPanel | None = None,
    is_live: bool = False,
) -> str:
    """Write the whole page.

    Everything that it needs stands in it. The policy comes before any script or style and names
    each by its hash, so that nothing else runs, whatever a module is called.
    """
    styles = [_text(_STYLES), _graph_style(panel)] if panel is not None else [_text(_STYLES)]
    script = _text(_SCRIPTS)
    policy = _policy([script], styles, is_live=is_live)
    encoding, content = encoded(data)
    tabs = "".join(_tab(one, is_first=not number) for number, one in enumerate(sections))
    panels = "".join(_panel(section) for section in sections)
    live = ' data-live="yes"' if is_live else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{safe(title)}</title>\n"
        f"<!-- Charts by uPlot:\n{_comment(_text(('uPlot.LICENSE',)))}-->\n"
        + "".join(f"<style>{style}</style>\n" for style in styles)
        + f"</head>\n<body{live}>\n"
        f"<header><div><h1>{safe(title)}</h1><p>{safe(subtitle)}</p></div>"
        '<div class="tools"><button type="button" id="help" aria-haspopup="dialog" hidden>Keys'
        '</button><button type="button" id="theme" hidden>Dark</button></div></header>\n'
        f'<div role="tablist" aria-label="Parts of the page" hidden>{tabs}</div>\n'
        f"{_CURSOR}\n<main>{panels}</main>\n{_KEYS}\n"
        f'<script id="data" type="application/json" data-encoding="{encoding}">{content}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


_CURSOR = (
    '<div id="cursor" hidden><label for="step">Step</label>'
    '<button type="button" id="earlier" aria-label="One step back">◀</button>'
    '<input type="range" id="step" min="0" value="0">'
    '<button type="button" id="later" aria-label="One step on">▶</button>'
    '<output id="step-text" for="step"></output></div>'
)
_KEYS = (
    '<dialog id="keys" aria-labelledby="keys-title"><h2 id="keys-title">Keys</h2><dl>'
    "<dt>/</dt><dd>filter the sites</dd><dt>j, k or ↓, ↑</dt><dd>next, previous site</dd>"
    "<dt>Enter</dt><dd>open the site</dd><dt>←, →</dt><dd>one step back, on</dd>"
    "<dt>Esc</dt><dd>clear the filter, close</dd><dt>1, 2, …</dt><dd>parts of the page</dd>"
    "<dt>?</dt><dd>this list</dd></dl>"
    '<form method="dialog"><button>Close</button></form></dialog>'
)


def _tab(one: Section, *, is_first: bool) -> str:
    selected = "true" if is_first else "false"
    focus = "0" if is_first else "-1"
    return (
        f'<button type="button" role="tab" id="tab-{one.name}" aria-controls="panel-{one.name}" '
        f'aria-selected="{selected}" tabindex="{focus}">{safe(one.title)}</button>'
    )


def _panel(one: Section) -> str:
    return (
        f'<section role="tabpanel" id="panel-{one.name}" aria-labelledby="tab-{one.name}">'
        f'<h2 class="still">{safe(one.title)}</h2>{one.html}</section>\n'
    )


def encoded(data: dict[str, Any]) -> tuple[str, str]:
    """Return the encoding of data (``json`` or ``gzip+base64``), and them as text for a script."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    if len(text) <= _PLAIN:
        # Nothing in a script element may look like its end.
        return "json", text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return "gzip+base64", base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _policy(scripts: Iterable[str], styles: Iterable[str], *, is_live: bool) -> str:
    connect = "; connect-src 'self'" if is_live else ""
    return (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; "
        f"img-src data:; base-uri 'none'; form-action 'none'{connect}"
    )


def _hashes(texts: Iterable[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def _graph_style(panel: GraphPanel) -> str:
    """Return the style of the graph, which follows the page from light to dark."""
    dark = [f"{rule}}}" for rule in panel.dark.split("}") if rule.strip()]
    chosen = "".join(f':root[data-theme="dark"] {rule}' for rule in dark)
    preferred = "".join(f':root:not([data-theme="light"]) {rule}' for rule in dark)
    return f"{panel.light}@media (prefers-color-scheme:dark){{{preferred}}}{chosen}"


def _comment(text: str) -> str:
    return text.replace("--", "- -")


@cache
def _text(names: tuple[str, ...]) -> str:
    """Return files of the assets, one after the other."""
    folder = files(_ASSETS.rpartition(".")[0]) / "assets"
    return "\n".join((folder / name).read_text(encoding="utf-8").strip() for name in names) + "\n"
