"""The sections of a page as HTML: what a person reads without scripts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from torchtap.core.text import count, number, percent, plural, size, typed
from torchtap.show.page.graph_panel import GraphPanel
from torchtap.show.page.highlights import Highlight, absences, by_depth
from torchtap.show.page.measured_run import NAMES, MeasuredRun, SiteNumbers, steps_said
from torchtap.show.page.static_pictures import flow_chart, safe, sparkline

COLUMNS = (
    ("site", "site"),
    ("type", "module"),
    ("series", "std over steps"),
    *((name, {"zeros": "zeros", "nonfinite": "NaN/Inf"}.get(name, name)) for name in NAMES),
    ("shape", "shape"),
)
_MOST_SCALARS = 12
_LENGTH, _NAME = 120, 68
"""Characters of a text, and of the name of a site in the table."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page, behind a tab.

    Attributes:
        name: of its element.
        title: on its tab.
        html: its content.
    """

    name: str
    title: str
    html: str


def overview(runs: Sequence[MeasuredRun], highlights: Iterable[Highlight]) -> Section:
    """Say what was recorded, and what stands out."""
    items = "".join(map(_highlight, highlights)) or "<li>Nothing was recorded.</li>"
    tables = "".join(_facts(run, has_label=len(runs) > 1) for run in runs)
    scalars = _scalars(runs)
    body = f'<h2>What stands out</h2><ul class="findings">{items}</ul>{scalars}<h2>Run</h2>{tables}'
    return Section("overview", "Overview", body)


def _highlight(one: Highlight) -> str:
    link = f' <a href="{safe(one.address)}">show</a>' if one.address else ""
    return f'<li class="{one.tone}">{_short(one.text, 600)}{link}</li>'


def _facts(one: MeasuredRun, *, has_label: bool) -> str:
    run, meta = one.run, one.run.meta
    parameters = sum(meta.num_parameters.values())
    ranks = f"{meta.rank} of {meta.world_size}" if meta.world_size > 1 else ""
    kept = f"{plural(len(run), 'value')}, {size(run.nbytes)}" if len(run) else "none"
    facts = [
        ("model", meta.model),
        ("modules", count(len(meta.modules)) if meta.modules else ""),
        ("parameters", count(parameters) if parameters else ""),
        ("steps", steps_said(run.steps)),
        ("sites", count(len(one.sites))),
        ("values kept", kept),
        ("watched", ", ".join(meta.where)),
        ("rank", ranks),
        ("PyTorch", meta.torch),
        ("torchtap", meta.torchtap),
        ("recorded", meta.created),
        *meta.labels.items(),
    ]
    rows = "".join(
        f'<tr><th scope="row">{_short(name)}</th><td>{_short(value, 400)}</td></tr>'
        for name, value in facts
        if value
    )
    caption = f"<caption>{_short(one.label)}</caption>" if has_label else ""
    return f'<table class="facts">{caption}{rows}</table>'


def _scalars(runs: Sequence[MeasuredRun]) -> str:
    names = list(dict.fromkeys(name for run in runs for name in run.scalars))[:_MOST_SCALARS]
    if not names:
        return ""
    figures = "".join(
        f'<figure class="chart" data-scalar="{safe(name)}"><figcaption>{_short(name)}</figcaption>'
        f"{''.join(_still_scalar(run, name) for run in runs if name in run.scalars)}</figure>"
        for name in names
    )
    return f'<h2>Logged numbers</h2><div class="charts">{figures}</div>'


def _still_scalar(one: MeasuredRun, name: str) -> str:
    values = one.scalars[name]
    seen = values[~np.isnan(values)]
    last = number(float(seen[-1])) if len(seen) else "no number"
    bad = one.bad_scalars.get(name, np.zeros(len(values)))
    line = sparkline(values, bad, f"{name} over the steps")
    return f'<p class="still">{line} {last}</p>'


# ---------------------------------------------------------------------- table of sites


def sites(runs: Sequence[MeasuredRun], reasons: dict[str, str]) -> Section:
    """List every site of the runs, those that only one has among them."""
    names = list(dict.fromkeys(name for run in runs for name in run.sites))
    is_pair = len(runs) > 1
    heads = "".join(
        f'<th scope="col" data-column="{name}"><button type="button">{safe(title)}</button></th>'
        for name, title in _columns(runs)
    )
    rows = "".join(_row(name, runs, reasons.get(name, "")) for name in names)
    missing = "" if names else "<p>No site was recorded. Watch with <code>tt.Stats()</code>.</p>"
    hint = "layer1*, *@Conv2d:grad_output, !*:param"
    body = (
        '<div class="bar"><label for="filter">Filter</label> '
        f'<input id="filter" type="search" placeholder="{hint}" autocomplete="off" '
        'spellcheck="false" aria-describedby="shown"> '
        f'<span id="shown" role="status">{plural(len(names), "site")}</span></div>{missing}'
        '<div class="split"><div class="scroll" tabindex="0" role="region" '
        f'aria-label="Table of sites"><table id="sites"{" class=pair" if is_pair else ""}>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
        '<aside id="detail" aria-label="One site" tabindex="-1">'
        "<p>Choose a site to see its series, histograms and maps.</p>"
        "<noscript><p>This needs scripts; the table is complete without them.</p></noscript>"
        "</aside></div>"
    )
    return Section("table", "Sites", body)


def _columns(runs: Sequence[MeasuredRun]) -> Iterator[tuple[str, str]]:
    yield from (one for one in COLUMNS if one[0] != "series" or _has_series(runs))
    if len(runs) > 1:
        yield "other", f"std in {runs[1].label}"
        yield "ratio", "ratio"


def _has_series(runs: Sequence[MeasuredRun]) -> bool:
    return any(len(run.steps) > 1 for run in runs)


def _row(name: str, runs: Sequence[MeasuredRun], reason: str) -> str:
    own = [run.sites.get(name) for run in runs]
    there = next(one for one in own if one is not None)
    last = own[0].last if own[0] is not None else {}
    only = [one.label for one, found in zip(runs, own, strict=True) if found is not None]
    remark = f"only in {only[0]}" if len(only) < len(runs) else reason and "zero by construction"
    cells = [
        f'<th scope="row"><a href="#site={_anchor(name)}">{_short(name, _NAME)}</a>'
        + (
            f' <small title="{safe(reason or remark)}">{_short(remark, 40)}</small>'
            if remark
            else ""
        )
        + "</th>",
        f'<td class="type">{_short(there.row.type)}</td>',
        f'<td class="series">{"".join(_spark(one) for one in own)}</td>' * _has_series(runs),
        *(f'<td class="number" data-name="{key}">{cell(key, last.get(key))}</td>' for key in NAMES),
        f'<td class="shape">{_short(_typed(there))}</td>',
    ]
    if len(runs) > 1:
        second = own[1].last["std"] if own[1] is not None else None
        cells += [
            f'<td class="number" data-name="other">{cell("std", second)}</td>',
            f'<td class="number" data-name="ratio">{_ratio(last.get("std"), second)}</td>',
        ]
    bad = (
        ' class="bad"' if any(one is not None and one.first_bad is not None for one in own) else ""
    )
    return f'<tr data-site="{escape(name)}"{bad}>{"".join(cells)}</tr>'


def _spark(one: SiteNumbers | None) -> str:
    if one is None:
        return ""
    return sparkline(
        one.series["std"], one.series["nonfinite"], f"std of {one.site} over the steps"
    )


def _typed(one: SiteNumbers) -> str:
    row = one.row
    return typed(row.dtype, row.shape) if row.shape is not None else row.dtype


def cell(name: str, value: float | None) -> str:
    """Return a number as a table shows it; empty where there is none."""
    if value is None or math.isnan(value):
        return ""
    if name == "zeros":
        return percent(value) if value else "0"
    return count(int(value)) if name == "nonfinite" else number(value)


def _ratio(own: float | None, other: float | None) -> str:
    if own is None or other is None or not own:
        return ""
    return cell("std", other / own)


def _anchor(name: str) -> str:
    from torchtap.show.page.highlights import quoted

    return safe(quoted(name))


def _short(text: str, room: int = _LENGTH) -> str:
    """Return a text for HTML; of a long one the middle is left out, and the whole is its title."""
    if len(text) <= room:
        return safe(text)
    half = room // 2
    return f'<span title="{safe(text[:2000])}">{safe(text[:half])}…{safe(text[-half:])}</span>'


# ---------------------------------------------------------------------- further sections


def flow(runs: Sequence[MeasuredRun]) -> Section:
    """Draw magnitudes of the forward and the backward over depth, in the last step."""
    lines = []
    for one, looks in zip(runs, (("forward", "backward"), ("forward2", "backward2")), strict=False):
        for port, look in zip(("output", "grad_output"), looks, strict=True):
            here = [one.sites[name] for name in by_depth(runs) if name in one.sites]
            own = [(str(n.site), n.last["absmax"]) for n in here if n.site.port == port]
            label = port if len(runs) == 1 else f"{port} of {one.label}"
            lines += [(f"absmax, {label}", look, own)] if own else []
    missing = [
        f"<p>No {what} was watched: <code>tt.watch(model, '{where}', to=tt.Stats())</code>.</p>"
        for what, port, where in (
            ("output", "output", "*:output"),
            ("gradient", "grad_output", "*:output,grad_output"),
        )
        if not any(n.site.port == port for run in runs for n in run.sites.values())
    ]
    keys = "".join(f'<li class="{look}">{safe(name)}</li>' for name, look, _ in lines)
    still = flow_chart(lines, "Largest magnitudes over depth, in the last step")
    body = (
        "<p>Largest magnitude of each module's output and of the gradient with respect to it, in "
        "the order of the modules, each after those inside of it, on a logarithmic axis. A cross "
        "on top: NaN or infinity.</p>"
        f'<ul class="keys">{keys}</ul><div id="flow-chart">{still}</div>{"".join(missing)}'
    )
    return Section("flow", "Flow", body)


def maps(
    images: Sequence[dict[str, Any]], notes: Iterable[str], pictures: Iterable[str]
) -> Section:
    """Show feature maps, and explanations where there are any."""
    figures = "".join(
        f'<figure class="maps" data-maps="{safe(image["site"])}">'
        f"<figcaption>{_short(image['site'])} "
        f"<small>{_map_caption(image)}</small></figcaption><canvas></canvas></figure>"
        for image in images
    )
    options = "".join(
        f'<option value="{name}">{name}</option>'
        for name in ("auto", "viridis", "cividis", "grey", "RdBu", "PuOr")
    )
    choice = (
        f'<div class="bar"><label for="colors">Colours</label> <select id="colors">{options}'
        "</select><noscript><p>Maps are drawn by a script.</p></noscript></div>"
    )
    nothing = (
        "<p>No feature maps: the run keeps no values of images. Watch with "
        "<code>tt.watch(model, '*@Conv2d')</code>, which keeps them.</p>"
    )
    shown = "".join(
        f'<figure><img alt="explanation" src="{picture}"></figure>' for picture in pictures
    )
    explained = f"<h2>Explanations</h2>{shown}" if shown else ""
    body = (
        (f'{choice}<div class="mosaic">{figures}</div>' if images else nothing)
        + _paragraphs(notes)
        + explained
    )
    return Section("maps", "Maps", body)


def _map_caption(one: dict[str, Any]) -> str:
    if "why" in one:
        return safe(one["why"])
    reach = f"range {number(one['smallest'])} to {number(one['largest'])}"
    return safe(", ".join([f"step {one['step']}", *one["notes"], reach]))


def graph(panel: GraphPanel) -> Section:
    """Show the graph of the run."""
    picture = f'<div class="scroll" tabindex="0" role="region" aria-label="Graph">{panel.svg}</div>'
    body = (picture if panel.svg else "") + _paragraphs(panel.notes)
    return Section("graph", "Graph", body or "<p>There is no graph.</p>")


def notes(runs: Sequence[MeasuredRun], further: Iterable[str], saved: str) -> Section:
    """Say what was asked for and not seen, and how the page was made."""
    rows = "".join(
        f"<tr><td>{_short(label)}</td><td>{_short(reason, 400)}</td>"
        f"<td>{_short(', '.join(found), 400)}</td></tr>"
        for label, reason, found in absences(runs)
    )
    table = (
        '<table><thead><tr><th scope="col">run</th><th scope="col">reason</th>'
        f'<th scope="col">sites</th></tr></thead><tbody>{rows}</tbody></table>'
        if rows
        else "<p>Everything that was asked for was seen.</p>"
    )
    kept = f"<h2>Saved for backward</h2><pre>{safe_lines(saved)}</pre>" if saved else ""
    body = f"<h2>Absent</h2>{table}{kept}<h2>How this page was made</h2>{_paragraphs(further)}"
    return Section("notes", "Notes", body)


def safe_lines(text: str) -> str:
    """Escape a text of several lines."""
    return "\n".join(map(safe, text.split("\n")))


def _paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{_short(text, 600)}</p>" for text in texts)
