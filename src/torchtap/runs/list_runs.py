"""Lists a run wherever it is: in memory, in a file, in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtap.runs.contents import Contents
    from torchtap.runs.listing import Listing
    from torchtap.runs.store.index import Index


def list_contents(held: Contents) -> Listing:
    """List what a run holds, wherever it is kept."""
    from torchtap.runs.listing import MeasuredEntry, listing_of

    series = held.series
    measured = [
        MeasuredEntry(one.site, one.dtype, one.shape) for one in series.measured if one.is_seen
    ]
    on_disk = held.kept.kept.entries
    index = _index_of(held) if on_disk is None else on_disk
    return listing_of(index, held.meta, held.source.absent, measured, len(series.steps))


def _index_of(held: Contents) -> Index:
    """The values in memory as the index of a folder has them, as far as they are listed."""
    from torchtap.runs.store.index import Index

    names = ("site", "step", "phase", "dtype", "shape", "nbytes")
    rows = [(site, step, phase, *fact) for site, step, phase, fact in held.index.facts(held.sites)]
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return Index.from_values({name: list(one) for name, one in zip(names, columns, strict=True)})


def list_file(path: str | Path) -> Listing:
    """List the run in a file, or in a folder; loads neither values nor torch.

    Raises:
        FileNotFoundError: there is no such file.
        RunError: the file is not a run of torchtap.
    """
    if Path(path).is_dir():
        from torchtap.runs.store.folder_listing import list_folder

        return list_folder(Path(path))
    from torchtap.runs.listing import listing_of
    from torchtap.runs.single_file.description import read_description
    from torchtap.runs.single_file.header import describing

    found = read_description(path)
    with describing(found.header.path):
        return listing_of(
            found.index, found.meta, found.absent, found.measured, found.num_measured_steps
        )
