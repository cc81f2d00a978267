"""A series as tensors and JSON, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtap.site import Site
from torchtap.stats.histogram import Histogram
from torchtap.stats.series import Measured, Series
from torchtap.stats.slices import Slices
from torchtap.store.listing import PREFIX


def pack(series: Series) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A series as named tensors and what JSON can hold.

    ``rows`` is ``float64[steps, sites, 16]``. Histograms stand one after the other as bins and
    counts; ``histograms`` in the JSON says whose they are and how many bins each has. Results of
    further statistics stand in the JSON, tensors as lists.
    """
    if not series.measured:
        return {}, {}
    steps, rows = series.as_array()
    tensors = {f"{PREFIX}.steps": torch.tensor(steps), f"{PREFIX}.rows": torch.from_numpy(rows)}
    bins, counts, index = [], [], []
    for step, place, histogram in series.histograms():
        bins.append(histogram.bins.astype(np.int16))
        counts.append(histogram.counts)
        index.append([step, place, len(histogram.bins), histogram.is_sample])
    if bins:
        tensors[f"{PREFIX}.bins"] = torch.from_numpy(np.concatenate(bins))
        tensors[f"{PREFIX}.counts"] = torch.from_numpy(np.concatenate(counts))
    for place, measured in enumerate(series.measured):
        if measured.mean_sum is not None:
            total = np.ascontiguousarray(measured.mean_sum)
            tensors[f"{PREFIX}.sum.{place}"] = torch.from_numpy(total)
    return tensors, {
        "keep": series.keep,
        "sites": [_flat(measured) for measured in series.measured],
        "histograms": index,
        "extras": [
            [step, place, {name: _readable(value) for name, value in extra.items()}]
            for step, place, extra in series.extras()
            if extra
        ],
    }


def unpack(tensors: Mapping[str, Tensor], body: Mapping[str, Any]) -> Series:
    """The series again."""
    series = Series(body.get("keep", 1))
    if not body:
        return series
    for place, entry in enumerate(body["sites"]):
        measured = series.measured[series.place_of(Site(*entry["site"]))]
        measured.dtype, measured.itemsize = entry["dtype"], entry["itemsize"]
        measured.shape = None if entry["shape"] is None else tuple(entry["shape"])
        measured.notes, measured.num_samples = tuple(entry["notes"]), entry["num_samples"]
        measured.why_no_mean = entry["why_no_mean"]
        total = tensors.get(f"{PREFIX}.sum.{place}")
        measured.mean_sum = None if total is None else total.numpy()
    by_step: dict[int, dict[int, Histogram]] = {}
    for step, place, histogram in _histograms(tensors, body["histograms"]):
        by_step.setdefault(step, {})[place] = histogram
    extras: dict[int, dict[int, dict[str, Any]]] = {}
    for step, place, extra in body.get("extras", ()):
        extras.setdefault(step, {})[place] = extra
    steps, rows = tensors[f"{PREFIX}.steps"].tolist(), tensors[f"{PREFIX}.rows"].numpy()
    series.restore(steps, rows, by_step, extras)
    return series


def _readable(value: Any) -> Any:
    """What JSON can hold of a statistic's result; what it cannot, as text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Slices):
        return value.as_dict()
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _readable(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): _readable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(one) for one in value]
    return str(value)


def _histograms(
    tensors: Mapping[str, Tensor], index: list[list[Any]]
) -> Iterator[tuple[int, int, Histogram]]:
    if not index:
        return
    bins, counts = tensors[f"{PREFIX}.bins"].numpy(), tensors[f"{PREFIX}.counts"].numpy()
    start = 0
    for step, place, length, is_sample in index:
        end = start + length
        yield step, place, Histogram.sparse(bins[start:end], counts[start:end], is_sample)
        start = end


def _flat(measured: Measured) -> dict[str, Any]:
    site = measured.site
    return {
        "site": [site.path, site.port, site.leaf],
        "dtype": measured.dtype,
        "shape": None if measured.shape is None else list(measured.shape),
        "itemsize": measured.itemsize,
        "notes": list(measured.notes),
        "num_samples": measured.num_samples,
        "why_no_mean": measured.why_no_mean,
    }
