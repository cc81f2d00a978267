"""A series as tensors and JSON, and back."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtap.core.absence import Absence
from torchtap.core.site import Site
from torchtap.runs.listing import PREFIX
from torchtap.runs.single_file.values import ALL, Read, Reader, UnwritableError, Writer
from torchtap.stats.catalogue.cosine import Cosine
from torchtap.stats.catalogue.effective_rank import EffectiveRank
from torchtap.stats.catalogue.nonfinite import FirstNonfinite
from torchtap.stats.catalogue.protocol import Statistic
from torchtap.stats.catalogue.results import Finished, Missing
from torchtap.stats.catalogue.slices import Along
from torchtap.stats.catalogue.top_k import TopK
from torchtap.stats.histogram import Histogram
from torchtap.stats.series import Saved, SavedHistograms, Series, SiteSummary

FURTHER = f"{PREFIX}.further"
"""Names of what the further statistics found begin so. Under this very name stands JSON as UTF-8
bytes: it grows with steps and sites, and a header may not."""

_OURS: Mapping[str, type[Any]] = {
    kind.__name__: kind for kind in (Along, TopK, Cosine, EffectiveRank, FirstNonfinite)
}
"""Statistics whose states are written, so that any window of steps can be merged later. Of one of
a user's own only the results are: its merge is code, and a file holds none."""


def pack(series: Series) -> tuple[dict[str, Tensor], dict[str, Any], list[Absence]]:
    """A series as named tensors, what JSON can hold, and what cannot be written.

    ``rows`` is ``float64[steps, sites, 16]``. Histograms stand one after the other as bins and
    counts; ``index``, ``int64[histograms, 4]``, says of which step and site each is, how many bins
    it has, and whether it is a sample. For what the further statistics found see
    :mod:`torchtap.runs.single_file.values`.
    """
    with series.lock:  # Another thread may go on measuring.
        return _pack(series) if series.measured else ({}, {}, [])


def _pack(series: Series) -> tuple[dict[str, Tensor], dict[str, Any], list[Absence]]:
    steps, rows = series.as_array()
    kept = torch.tensor([series.is_kept(step) for step in steps], dtype=torch.bool)
    tensors = {
        f"{PREFIX}.steps": torch.tensor(steps, dtype=torch.int64),
        f"{PREFIX}.rows": torch.from_numpy(rows),
        f"{PREFIX}.kept": kept,
        **_packed_histograms(series),
    }
    for place, measured in enumerate(series.measured):
        if measured.mean_sum is not None:
            total = np.ascontiguousarray(measured.mean_sum)
            tensors[f"{PREFIX}.sum.{place}"] = torch.from_numpy(total)
    flat, further, absent = _packed_states(series)
    body = {
        "keep": series.keep,
        "has_histograms": series.has_histograms,
        "sites": [_flat(measured) for measured in series.measured],
        "further": further,
    }
    return {**tensors, **flat}, body, absent


def is_small(name: str) -> bool:
    """Return whether a tensor is of a series and read at once; others are read when asked for."""
    return name.startswith(PREFIX) and not name.startswith(FURTHER)


def unpack(tensors: Mapping[str, Tensor], body: Mapping[str, Any] | None, read: Read) -> Series:
    """The series again.

    Args:
        tensors: its tensors by name, but for those of the further statistics.
        body: its JSON.
        read: ``(name, start, end)`` gives elements of those, when they are asked for.
    """
    if not body:
        return Series(1)
    statistics, saved = _states_of(body["further"], read)
    series = Series(body["keep"], statistics)
    series.has_histograms = body["has_histograms"]
    _fill_sites(series, tensors, body["sites"])
    steps, kept = (tensors[f"{PREFIX}.{name}"].tolist() for name in ("steps", "kept"))
    series.restore(steps, tensors[f"{PREFIX}.rows"].numpy(), kept, _histograms(tensors), saved)
    return series


# ---------------------------------------------------------------------- further statistics


def _packed_states(
    series: Series,
) -> tuple[dict[str, Tensor], list[dict[str, Any]], list[Absence]]:
    writer = Writer()
    entries = []
    absent: dict[Absence, None] = {}
    for step, place, states in series.states():
        nodes = []
        for one, state in zip(series.statistics, states, strict=True):
            is_ours = type(one).__name__ in _OURS and _OURS[type(one).__name__] is type(one)
            is_state = is_ours or isinstance(state, Missing)
            try:
                nodes.append(writer.node(state if is_state else one.finish(state)))
            except UnwritableError as error:
                why = _unwritable(str(error))
                nodes.append(writer.node(Missing(why)))
                absent[Absence(series.measured[place].site, f"of {one.name!r}, {why}")] = None
        entries.append([step, place, nodes])
    statistics = [_described(one, writer) for one in series.statistics]
    text = np.frombuffer(json.dumps(entries).encode(), dtype=np.uint8).copy()
    tensors = {f"{FURTHER}.{name}": flat for name, flat in writer.tensors().items()}
    return {FURTHER: torch.from_numpy(text), **tensors}, statistics, list(absent)


def _described(one: Statistic, writer: Writer) -> dict[str, Any]:
    """Describe how a statistic is made again: from its arguments, or by name if it is not ours."""
    kind = type(one)
    if _OURS.get(kind.__name__) is not kind:
        return {"kind": None, "arguments": [str(one.name)]}
    names = [entry.name for entry in fields(kind) if not entry.name.startswith("_")]
    return {"kind": kind.__name__, "arguments": [writer.node(getattr(one, n)) for n in names]}


def _states_of(further: list[dict[str, Any]], read: Read) -> tuple[list[Statistic], Saved]:
    reader = Reader(lambda dtype, start, end: read(f"{FURTHER}.{dtype}", start, end))
    statistics: list[Any] = [
        _OURS.get(entry["kind"], Finished)(*reader.all(entry["arguments"])) for entry in further
    ]

    @functools.cache
    def entries() -> dict[tuple[int, int], list[Any]]:
        text = read(FURTHER, 0, ALL).numpy().tobytes()
        return {(step, place): nodes for step, place, nodes in json.loads(text)}

    def saved(step: int, place: int) -> list[Any] | None:
        nodes = entries().get((step, place)) if statistics else None
        return None if nodes is None else reader.all(nodes)

    return statistics, saved


def _unwritable(what: str) -> str:
    return (
        f"its result is a {what}, which a file without pickle cannot hold. Let finish() return "
        f"numbers, texts, tensors, arrays, or lists, tuples, sets and dicts of them."
    )


# ---------------------------------------------------------------------- sites and histograms


def _fill_sites(
    series: Series, tensors: Mapping[str, Tensor], entries: list[dict[str, Any]]
) -> None:
    for place, entry in enumerate(entries):
        measured = series.measured[series.place_of(Site(*entry["site"]))]
        measured.dtype, measured.itemsize = entry["dtype"], entry["itemsize"]
        measured.shape = None if entry["shape"] is None else tuple(entry["shape"])
        measured.notes, measured.num_samples = tuple(entry["notes"]), entry["num_samples"]
        measured.why_no_mean = entry["why_no_mean"]
        measured.has_total = entry.get("has_total", True)
        total = tensors.get(f"{PREFIX}.sum.{place}")
        measured.mean_sum = None if total is None else total.numpy()


def _packed_histograms(series: Series) -> dict[str, Tensor]:
    bins, counts, index = [], [], []
    for step, place, histogram in series.histograms():
        bins.append(histogram.bins.astype(np.int16))
        counts.append(histogram.counts)
        index.append([step, place, len(histogram.bins), histogram.is_sample])
    found = {f"{PREFIX}.index": torch.tensor(index, dtype=torch.int64).reshape(-1, 4)}
    if bins:
        found[f"{PREFIX}.bins"] = torch.from_numpy(np.concatenate(bins))
        found[f"{PREFIX}.counts"] = torch.from_numpy(np.concatenate(counts))
    return found


def _histograms(tensors: Mapping[str, Tensor]) -> SavedHistograms:
    """A function that makes the histograms of one step when they are asked for."""
    index = tensors[f"{PREFIX}.index"].numpy()
    starts = np.cumsum(index[:, 2]) - index[:, 2]

    def of_step(step: int) -> dict[int, Histogram]:
        chosen = np.flatnonzero(index[:, 0] == step)
        if not len(chosen):
            return {}
        bins, counts = (tensors[f"{PREFIX}.{name}"].numpy() for name in ("bins", "counts"))
        found = {}
        for (_, place, length, is_sample), start in zip(
            index[chosen].tolist(), starts[chosen].tolist(), strict=True
        ):
            part = slice(start, start + length)
            found[place] = Histogram.sparse(bins[part], counts[part], bool(is_sample))
        return found

    return of_step


def _flat(measured: SiteSummary) -> dict[str, Any]:
    site = measured.site
    return {
        "site": [site.path, site.port, site.leaf],
        "dtype": measured.dtype,
        "shape": None if measured.shape is None else list(measured.shape),
        "itemsize": measured.itemsize,
        "notes": list(measured.notes),
        "num_samples": measured.num_samples,
        "why_no_mean": measured.why_no_mean,
        "has_total": measured.has_total,
    }
