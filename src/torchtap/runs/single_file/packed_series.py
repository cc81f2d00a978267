"""A series as tensors and JSON, and back."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtap.core.absence import Absence
from torchtap.core.site import Site
from torchtap.runs.single_file.header import PREFIX
from torchtap.runs.single_file.nested_json import ALL, Node, Read, Reader, UnwritableError, Writer
from torchtap.stats.catalogue.protocol import Statistic
from torchtap.stats.catalogue.results import Missing
from torchtap.stats.catalogue.saved import (
    Description,
    NotWrittenError,
    described,
    made_again,
    state_of,
    unwritable,
    written,
)
from torchtap.stats.histogram import Histogram
from torchtap.stats.kept_steps import SavedHistograms, SavedStates, SavedSteps
from torchtap.stats.read_series import histograms_of, states_of
from torchtap.stats.series import Series
from torchtap.stats.site_summary import SiteSummary

FURTHER = f"{PREFIX}.further"
"""Names of what the further statistics found begin so. Under this very name stands JSON as UTF-8
bytes: it grows with steps and sites, and a header may not."""


def pack(series: Series) -> tuple[dict[str, Tensor], dict[str, Any], list[Absence]]:
    """Pack a series as named tensors and what JSON can hold; say what cannot be written.

    ``rows`` is ``float64[steps, sites, 16]``. Histograms stand one after the other as bins and
    counts; ``index``, ``int64[histograms, 4]``, says of which step and site each is, how many bins
    it has, and whether it is a sample. For what the further statistics found see
    :mod:`torchtap.runs.single_file.nested_json`.
    """
    with series.lock:  # Another thread may go on measuring.
        return _pack(series) if series.measured else ({}, {}, [])


def _pack(series: Series) -> tuple[dict[str, Tensor], dict[str, Any], list[Absence]]:
    steps, rows = series.rows.as_array()
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
        "sites": [_flat_site(measured) for measured in series.measured],
        "further": further,
    }
    return {**tensors, **flat}, body, absent


def is_small(name: str) -> bool:
    """Return whether a tensor is of a series and read at once; others are read when asked for."""
    return name.startswith(PREFIX) and not name.startswith(FURTHER)


def unpack(
    tensors: Mapping[str, Tensor],
    body: Mapping[str, Any] | None,
    read: Read,
    own: Sequence[Statistic] = (),
) -> Series:
    """Make the series again.

    Args:
        tensors: its tensors by name, but for those of the further statistics.
        body: its JSON.
        read: ``(name, start, end)`` gives elements of those, when they are asked for.
        own: user-defined statistics, needed to unpack their saved states.
    """
    if not body:
        return Series(1)
    statistics, saved = _states_of(body["further"], read, own)
    series = Series(body["keep"], statistics)
    series.has_histograms = body["has_histograms"]
    _fill_sites(series, tensors, body["sites"])
    steps, kept = (tensors[f"{PREFIX}.{name}"].tolist() for name in ("steps", "kept"))
    there = [step for step, is_kept in zip(steps, kept, strict=True) if is_kept]
    rows = tensors[f"{PREFIX}.rows"].numpy()
    series.restore(steps, rows, SavedSteps(there, _histograms(tensors), saved))
    return series


# ---------------------------------------------------------------------- further statistics


def _packed_states(
    series: Series,
) -> tuple[dict[str, Tensor], list[dict[str, Any]], list[Absence]]:
    writer = Writer()
    entries = []
    absent: dict[Absence, None] = {}
    for step, place, states in states_of(series):
        nodes = []
        for one, state in zip(series.statistics, states, strict=True):
            try:
                nodes.append(_node(one, state, writer))
            except NotWrittenError as error:
                nodes.append(writer.node(Missing(str(error))))
                absent[Absence(series.measured[place].site, f"of {one.name!r}, {error}")] = None
        entries.append([step, place, nodes])
    statistics = [_flat(described(statistic), writer) for statistic in series.statistics]
    text = np.frombuffer(json.dumps(entries).encode(), dtype=np.uint8).copy()
    tensors = {f"{FURTHER}.{name}": flat for name, flat in writer.tensors().items()}
    return {FURTHER: torch.from_numpy(text), **tensors}, statistics, list(absent)


def _node(one: Statistic, state: Any, writer: Writer) -> Node:
    """Return the node of a state.

    Raises:
        NotWrittenError: the file cannot hold it.
    """
    try:
        return writer.node(written(one, state))
    except UnwritableError as error:
        raise NotWrittenError(unwritable(one, str(error))) from error


def _flat(one: Description, writer: Writer) -> dict[str, Any]:
    arguments = [writer.node(each) for each in one.arguments]
    as_json: dict[str, Any] = {"kind": one.kind, "arguments": arguments}
    return {**as_json, "packed_by": one.packed_by} if one.packed_by else as_json


def _states_of(
    further: list[dict[str, Any]], read: Read, own: Sequence[Statistic]
) -> tuple[list[Statistic], SavedStates]:
    """Make the statistics of a file again, and a function that reads their states."""
    reader = Reader(lambda dtype, start, end: read(f"{FURTHER}.{dtype}", start, end))
    statistics = [
        made_again(
            Description(one["kind"], reader.all(one["arguments"]), one.get("packed_by", "")), own
        )
        for one in further
    ]

    @functools.cache
    def entries() -> dict[tuple[int, int], list[Any]]:
        text = read(FURTHER, 0, ALL).numpy().tobytes()
        return {(step, place): nodes for step, place, nodes in json.loads(text)}

    def saved(step: int, place: int) -> list[Any] | None:
        nodes = entries().get((step, place)) if statistics else None
        if nodes is None:
            return None
        return list(map(state_of, statistics, reader.all(nodes)))

    return statistics, saved


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
    for step, place, histogram in histograms_of(series):
        bins.append(histogram.bins.astype(np.int16))
        counts.append(histogram.counts)
        index.append([step, place, len(histogram.bins), histogram.is_sample])
    packed = {f"{PREFIX}.index": torch.tensor(index, dtype=torch.int64).reshape(-1, 4)}
    if bins:
        packed[f"{PREFIX}.bins"] = torch.from_numpy(np.concatenate(bins))
        packed[f"{PREFIX}.counts"] = torch.from_numpy(np.concatenate(counts))
    return packed


def _histograms(tensors: Mapping[str, Tensor]) -> SavedHistograms:
    """Return a function that makes the histograms of one step when they are asked for."""
    index = tensors[f"{PREFIX}.index"].numpy()
    starts = np.cumsum(index[:, 2]) - index[:, 2]

    def of_step(step: int) -> dict[int, Histogram]:
        chosen = np.flatnonzero(index[:, 0] == step)
        if not len(chosen):
            return {}
        bins, counts = (tensors[f"{PREFIX}.{name}"].numpy() for name in ("bins", "counts"))
        histograms = {}
        for (_, place, length, is_sample), start in zip(
            index[chosen].tolist(), starts[chosen].tolist(), strict=True
        ):
            part = slice(start, start + length)
            histograms[place] = Histogram.sparse(bins[part], counts[part], bool(is_sample))
        return histograms

    return of_step


def _flat_site(measured: SiteSummary) -> dict[str, Any]:
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
