"""Lists a run wherever it is: in memory, in a file, in a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchtap.runs.listing import (
    ListedValue,
    Listing,
    MeasuredEntry,
    list_saved,
    listing_of,
    with_measured,
)

if TYPE_CHECKING:
    from torchtap.runs.contents import Contents


def list_contents(held: Contents) -> Listing:
    """List what a run holds, wherever it is kept."""
    meta = held.meta
    if held.entries is not None:
        from torchtap.runs.store.folder_listing import list_index

        found = list_index(held.entries, meta.model, meta.modules, held.absent())
    else:
        values = [ListedValue(site, step, phase, *fact) for site, step, phase, fact in held.facts()]
        found = listing_of(meta.model, meta.modules, values, held.absent())
    found = replace(found, rank=meta.rank, world_size=meta.world_size)
    series = held.series
    measured = [
        MeasuredEntry(one.site, one.dtype, one.shape) for one in series.measured if one.is_seen
    ]
    return with_measured(found, meta.modules, measured, len(series.steps))


def list_file(path: str | Path) -> Listing:
    """List the run in a file, or in a folder; loads neither values nor torch.

    Raises:
        FileNotFoundError: there is no such file.
        RunError: the file is not a run of torchtap.
    """
    if Path(path).is_dir():
        from torchtap.runs.store.folder_listing import list_folder

        return list_folder(Path(path))
    return list_saved(path)
