"""The part of a page that says in what two runs differ, as ``tt.compare`` finds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchtap.core.errors import CompareError
from torchtap.core.text import plural
from torchtap.diagnosis.comparison.compare import compare
from torchtap.diagnosis.comparison.result import Comparison, Row
from torchtap.diagnosis.comparison.show_comparison import HEADERS, row_texts
from torchtap.show.page.highlights import quoted
from torchtap.show.page.measured_run import MeasuredRun
from torchtap.show.page.sections import Section
from torchtap.show.page.static_pictures import safe

_MOST_ROWS = 400
_NUMBERS = ("call", "total", "inherited", "added", "tolerance")


def comparison_section(runs: Sequence[MeasuredRun]) -> Section:
    """Compare two runs, and show the rows with the sites that only one has."""
    first, second = (run.run for run in runs)
    try:
        comparison = compare(first, second)
    except CompareError as error:
        return Section("comparison", "Comparison", f"<p>{safe(str(error))}</p>")
    labels = runs[0].label, runs[1].label
    body = _verdict(comparison, labels) + _table(comparison, runs) + _only(comparison, labels)
    notes = "".join(f"<p>{safe(note)}</p>" for note in comparison.notes)
    return Section("comparison", "Comparison", f"{body}<h2>What was compared</h2>{notes}")


def _verdict(found: Comparison, labels: tuple[str, str]) -> str:
    legend = f"<p>{safe(labels[0])} is the reference, {safe(labels[1])} the candidate.</p>"
    if found.first is None:
        beyond = " beyond rounding" if found.rows else ""
        return f'{legend}<p class="good">They do not differ{beyond}.</p>'
    row = found.first
    where = f"{row.name}:{row.port}, step {row.step}, call {row.call}, {row.phase}"
    cause = f" ({row.cause})" if row.cause else ""
    return f'{legend}<p class="bad">First at {safe(where)}{cause}: {safe(row.text)}</p>'


def _table(found: Comparison, runs: Sequence[MeasuredRun]) -> str:
    if not found.rows:
        return ""
    sites = {f"{one.site.path or '.'}:{one.site.port}": n for n, one in runs[0].sites.items()}
    heads = "".join(f'<th scope="col">{safe(name)}</th>' for name in HEADERS)
    rows = "".join(_row(row, sites, is_first=row is found.first) for row in found.rows[:_MOST_ROWS])
    more = len(found.rows) - _MOST_ROWS
    rest = (
        f"<p>{plural(more, 'more difference')} in <code>tt.compare</code>.</p>" if more > 0 else ""
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Differences">'
        f'<table id="differences"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
        f"</div>{rest}"
    )


def _row(row: Row, sites: Mapping[str, str], *, is_first: bool) -> str:
    texts = row_texts(row)
    site = sites.get(f"{row.path}:{row.port}")
    name = safe(texts[0])
    if site is not None:
        name = f'<a href="#site={safe(quoted(site))}&amp;step={row.step}">{name}</a>'
    cells = [f'<th scope="row">{name}</th>']
    for header, text in zip(HEADERS[1:], texts[1:], strict=True):
        kind = ' class="number"' if header in _NUMBERS else ""
        cells.append(f"<td{kind}>{safe(text)}</td>")
    tone = ' class="bad"' if is_first else ""
    return f"<tr{tone}>{''.join(cells)}</tr>"


def _only(found: Comparison, labels: tuple[str, str]) -> str:
    return "".join(
        f"<p>Only in {safe(label)}: {safe(', '.join(paths))}</p>"
        for label, paths in zip(labels, (found.only_a, found.only_b), strict=True)
        if paths
    )
