"""Build the page of a run, or the data of a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from torchtap.core.text import plural
from torchtap.runs.run import Run
from torchtap.show.page import sections
from torchtap.show.page.buckets import Buckets, packed, rounded
from torchtap.show.page.comparison_panel import comparison_section
from torchtap.show.page.diagnosis_panel import diagnosis_section
from torchtap.show.page.document import document
from torchtap.show.page.feature_images import BYTES, feature_images
from torchtap.show.page.graph_panel import graph_panel
from torchtap.show.page.highlights import Highlight, by_depth, compare, find
from torchtap.show.page.measured_run import (
    NAMES,
    MeasuredRun,
    SiteNumbers,
    measure_run,
    steps_said,
)
from torchtap.show.page.value_spread import spread_over_steps

if TYPE_CHECKING:
    from torchtap.graphs.graph import Graph

FORMAT = "torchtap.report/1"
_NUMBERS = 360_000
"""Numbers of all series of a page where no size is asked for."""
_MOST_POINTS, _FEWEST_POINTS = 400, 24
_LAST = ("mean", "std", "rms", "l1", "l2", "min", "max", "absmax", "zeros", "nan", "posinf",
         "neginf", "subnormal", "numel", "num_finite")  # fmt: skip


class Pictured(Protocol):
    """An explanation that draws itself, as a :class:`~torchtap.explain.maps.map.Map`."""

    def to_figure(self, image: Any = None) -> Any:
        """Return a ``matplotlib.figure.Figure``, of the map over the image where there is one."""


Explanation = Pictured | tuple[Pictured, Any]
"""An explanation, alone or with the picture that it explains."""


@dataclass(frozen=True, slots=True)
class PageParts:
    """Further things that a page shows beside its runs.

    Attributes:
        title: of the page; the model's name where it is empty.
        graph: a graph to show in place of the one that the run recorded.
        maps: explanations, each of which draws itself, or pairs of one and its picture.
        saved: a report of what autograd saves, as text.
    """

    title: str = ""
    graph: Graph | None = None
    maps: Sequence[Explanation] = ()
    saved: str = ""


def page_data(run: Run, *, other: Run | None = None, part: float = 1.0) -> dict[str, Any]:
    """Return the data of a page: what its script reads, and other programs may.

    Args:
        run: of which.
        other: a second run, beside it.
        part: share of the usual resolution of series, histograms and maps.
    """
    return _data(_measured(run, other), part)


def page_html(
    run: Run,
    *,
    other: Run | None = None,
    part: float = 1.0,
    live: bool = False,
    parts: PageParts | None = None,
) -> str:
    """Return the page of a run as one text of HTML.

    Args:
        run: which.
        other: a second run, beside it.
        part: share of the usual resolution.
        live: whether it asks the server that it came from for newer data.
        parts: further things to show.
    """
    parts = PageParts() if parts is None else parts
    runs = _measured(run, other)
    data = _data(runs, part)
    panel = graph_panel(run, parts.graph)
    made = [
        sections.overview(runs, [Highlight(**one) for one in data["highlights"]]),
        sections.sites(runs, runs[0].known_zero),
        *([comparison_section(runs)] if len(runs) > 1 else ()),
        sections.flow(runs),
        diagnosis_section(run),
        sections.maps(data["maps"], data["map_notes"], map(_picture, parts.maps)),
        sections.graph(panel),
        sections.notes(runs, data["notes"], parts.saved),
    ]
    title = parts.title or run.meta.model or "A run"
    subtitle = " beside ".join(one.label for one in runs) if other is not None else data["subtitle"]
    return document(title, subtitle, made, data, panel=panel, is_live=live)


def _measured(run: Run, other: Run | None) -> list[MeasuredRun]:
    if other is None:
        return [measure_run(run, "run")]
    labels = [one.meta.labels.get("name", "") for one in (run, other)]
    if not all(labels) or labels[0] == labels[1]:
        labels = ["the first run", "the second run"]
    return [measure_run(run, labels[0]), measure_run(other, labels[1])]


def _data(runs: Sequence[MeasuredRun], part: float) -> dict[str, Any]:
    first = runs[0]
    names = list(dict.fromkeys(name for run in runs for name in run.sites))
    depth = {name: place for place, name in enumerate(by_depth(runs))}
    num_series = max(1, sum(len(run.sites) for run in runs) * len(NAMES) * 2)
    most = int(part * _NUMBERS / num_series)
    most = max(_FEWEST_POINTS, min(int(part * _MOST_POINTS), most))
    images, map_notes = feature_images(first.run, int(part * BYTES))
    highlights = find(first)
    for other in runs[1:]:
        bad = [one for one in find(other) if one.tone == "bad"]
        highlights += [replace(one, text=f"In {other.label}: {one.text}") for one in bad]
        highlights = [*compare(first, other), *highlights]
    return {
        "format": FORMAT,
        "model": first.run.meta.model,
        "subtitle": _subtitle(first),
        "modules": {path: list(types) for path, types in first.run.meta.modules.items()},
        "names": list(NAMES),
        "highlights": [asdict(highlight) for highlight in highlights],
        "known_zero": first.known_zero,
        "sites": {name: _site(name, runs, depth) for name in names},
        "runs": [_run(run, most, part) for run in runs],
        "maps": images,
        "map_notes": map_notes,
        "notes": list(_notes(runs, most, part)),
    }


def _subtitle(one: MeasuredRun) -> str:
    return f"{plural(len(one.sites), 'site')}, {steps_said(one.run.steps)}"


def _site(name: str, runs: Sequence[MeasuredRun], depth: Mapping[str, int]) -> dict[str, Any]:
    there: SiteNumbers = next(run.sites[name] for run in runs if name in run.sites)
    row = there.row
    return {
        "path": row.site.path,
        "port": row.site.port,
        "leaf": row.site.leaf,
        "depth": depth[name],
        "type": row.type,
        "dtype": row.dtype,
        "shape": None if row.shape is None else list(row.shape),
        "calls": row.calls,
        "nbytes": row.nbytes,
    }


def _run(one: MeasuredRun, most: int, part: float) -> dict[str, Any]:
    buckets = Buckets.of(one.steps, most)
    steps = {"steps": buckets.first} if buckets.is_exact else {
        "steps": buckets.first, "last_steps": buckets.last}  # fmt: skip
    spread = {name: spread_over_steps(one, name) for name in one.sites} if part > 0.3 else {}
    return {
        "label": one.label,
        "num_steps": len(one.steps),
        **steps,
        "scalars": {name: packed(buckets, values) for name, values in one.scalars.items()},
        "bad_scalars": {name: packed(buckets, values) for name, values in one.bad_scalars.items()},
        "series": {
            name: {key: packed(buckets, values) for key, values in numbers.series.items()}
            for name, numbers in one.sites.items()
        },
        "spread": {name: found for name, found in spread.items() if found is not None},
        "last": {name: _last(numbers) for name, numbers in one.sites.items()},
        "first_bad": {
            name: numbers.first_bad
            for name, numbers in one.sites.items()
            if numbers.first_bad is not None
        },
    }


def _last(one: SiteNumbers) -> dict[str, Any]:
    stats = one.row.stats
    numbers = rounded([float(getattr(stats, name)) for name in _LAST])
    return {"step": one.row.step, **dict(zip(_LAST, numbers, strict=True))}


def _notes(runs: Sequence[MeasuredRun], most: int, part: float) -> Iterable[str]:
    for run in runs:
        yield from run.notes
        if len(run.steps) > most:
            yield (
                f"{run.label}: charts have {most} points for {len(run.steps):,} steps. Each point "
                f"is drawn from the smallest to the largest number of its steps: nothing is "
                f"smoothed, and no extreme is lost."
            )
    yield "Numbers are rounded to four digits. They are of the finite elements of each tensor."
    if part < 1:
        yield f"Resolution is reduced to {100 * part:.0f} % to keep the page small (max_mb)."


def _picture(one: Explanation) -> str:
    """Return an explanation as the address of a picture that stands in the page."""
    found, image = one if isinstance(one, tuple) else (one, None)
    target = io.BytesIO()
    # A photograph under a map takes an eighth of a PNG's bytes, and every browser reads it.
    found.to_figure(image).savefig(
        target, format="webp", dpi=100, bbox_inches="tight", pil_kwargs={"quality": 80, "method": 6}
    )
    return f"data:image/webp;base64,{base64.b64encode(target.getvalue()).decode()}"
