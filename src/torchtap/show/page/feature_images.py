"""Feature maps as pictures of 8 bits, which a page draws in the colours that are asked for."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtap.core.errors import InputError, TorchtapError
from torchtap.core.record import Record
from torchtap.plot.grids import layout_of, num_rows
from torchtap.plot.prepare import take_maps
from torchtap.runs.run import Run
from torchtap.show.page.buckets import rounded

MOST_SITES = 40
_MOST_CHANNELS = 12
_LARGEST, _SMALLEST = 56, 8
_LEAST = 3
"""Pixels in a row of the smallest map that is worth a look."""
_LINES = ("NCL", "CL")
BYTES = 420_000
"""Bytes of all pictures of a page, before they are compressed, where no size is asked for."""


def feature_images(run: Run, nbytes: int = BYTES) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the maps of the last step of a run, and what is to be known of them.

    Args:
        run: of which ``output`` and ``grad_output`` values were kept.
        nbytes: of all maps together, before compression: more of them are reduced further.

    Returns:
        for each site ``site shape channels height width low high data``, the last one base64 of
        ``uint8[channels, height, width]``: 0 is ``low``, 254 is ``high``, and 255 is what is not
        finite. Maps of both signs have symmetric limits.
    """
    records = list(_records(run))
    notes = []
    if len(records) > MOST_SITES:
        notes.append(f"The first {MOST_SITES} of {len(records)} sites with maps are shown.")
        records = records[:MOST_SITES]
    side = int(math.sqrt(nbytes / max(len(records), 1) / _MOST_CHANNELS))
    side = max(_SMALLEST, min(_LARGEST, side))
    every = (_image(run, record, layout, side) for record, layout in records)
    images = [one for one in every if one is not None]
    if any(image["reduced"] for image in images):
        notes.append(f"Maps of more than {side} x {side} are reduced by the mean of each part.")
    return images, notes


def _records(run: Run) -> Iterator[tuple[Record, Any]]:
    last: dict[Any, Record] = {}
    for record in run.records() if len(run) else ():
        if record.site.port in ("output", "grad_output") and not record.overwritten:
            last[record.site] = record
    for site in run.sites:
        last_record = last.get(site)
        if last_record is None or last_record.kept.dim() < 3:
            continue
        try:
            layout = layout_of(run, last_record)
        except InputError:
            continue  # Of words, or of a layout that cannot be known: no picture.
        if layout not in _LINES:
            yield last_record, layout


def _image(run: Run, record: Record, layout: Any, side: int) -> dict[str, Any] | None:
    shape = list(record.kept.shape)
    try:
        maps = take_maps(record, layout, 0, _MOST_CHANNELS, 0.0, rows=num_rows(run, record))
    except TorchtapError as error:
        return {"site": str(record.site), "shape": shape, "reduced": False, "why": str(error)}
    if min(maps.values.shape[1:]) < _LEAST:
        return None
    values = _reduced(maps.values, side)
    low, high = maps.limits
    finite = np.isfinite(values)
    with np.errstate(all="ignore"):
        unit = np.clip((values - low) / (high - low), 0, 1)
    levels = np.where(finite, np.rint(254 * np.nan_to_num(unit)), 255).astype(np.uint8)
    ends = rounded([low, high, maps.low, maps.high])
    return {
        "site": str(record.site),
        "step": record.step,
        "shape": shape,
        "channels": list(maps.channels),
        "height": levels.shape[1],
        "width": levels.shape[2],
        "low": ends[0],
        "high": ends[1],
        "smallest": ends[2],
        "largest": ends[3],
        "notes": list(maps.notes),
        "reduced": values.shape != maps.values.shape,
        "data": base64.b64encode(levels.tobytes()).decode(),
    }


def _reduced(values: NDArray[np.float64], side: int) -> NDArray[np.float64]:
    """Reduce maps ``[C, H, W]`` to at most ``side`` by the mean of each part of whole pixels."""
    for axis in (1, 2):
        length = values.shape[axis]
        if length > side:
            starts = np.linspace(0, length, side, endpoint=False).astype(np.intp)
            sizes = np.diff(np.append(starts, length))
            parts = np.add.reduceat(values, starts, axis=axis)
            values = parts / sizes.reshape([-1 if n == axis else 1 for n in range(3)])
    return values
