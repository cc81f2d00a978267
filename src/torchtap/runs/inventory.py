"""The inventory of a run: what is at which site, without values. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtap.core.absence import Absence
from torchtap.core.ports import PORTS
from torchtap.core.record import BACKWARD, EVAL, FORWARD, RECOMPUTE
from torchtap.core.site import Site
from torchtap.runs.meta import Meta
from torchtap.runs.records import distinct
from torchtap.runs.store.index import Index

if TYPE_CHECKING:
    from torchtap.runs.contents import Contents


@dataclass(frozen=True, slots=True)
class SiteEntry:
    """The summary of what was recorded at one site.

    Attributes:
        site: where.
        dtype: of the values, without ``torch.``; several are joined by ``|``.
        shape: ``None`` for a dimension that differs between values; ``None`` as a whole where
            even the number of dimensions differs.
        calls: most values in one step.
        steps: number of steps with a value.
        nbytes: bytes of all values.
    """

    site: Site
    dtype: str
    shape: tuple[int | None, ...] | None
    calls: int
    steps: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class MeasuredEntry:
    """A site whose values were measured as they flowed.

    Attributes:
        site: where.
        dtype: of its tensors, without ``torch.``; ``mixed`` if they differ.
        shape: of its tensors; ``None`` if they differ.
    """

    site: Site
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Inventory:
    """The inventory of a run: a summary for each site.

    Attributes:
        model: class name of the model.
        sites: one entry per site, by module, port and leaf.
        num_records: values of the forward phase.
        num_recomputed: values that activation checkpointing computed again.
        num_in_backward: values and gradients of other calls inside a backward.
        num_evaluated: values of the evaluation forwards of a model that trains.
        steps: steps with a value, ascending.
        absent: what was selected and not seen, with reasons.
        measured: sites that ``tt.Stats`` measured, by module, port and leaf.
        num_measured_steps: in how many steps.
        rank: of the process that recorded it; ``None`` of all of them, merged.
        world_size: how many there were.
    """

    model: str
    sites: tuple[SiteEntry, ...]
    num_records: int
    num_recomputed: int
    steps: tuple[int, ...]
    absent: tuple[Absence, ...]
    measured: tuple[MeasuredEntry, ...] = ()
    num_measured_steps: int = 0
    num_in_backward: int = 0
    num_evaluated: int = 0
    rank: int | None = 0
    world_size: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of the values of the forward phase."""
        return sum(entry.nbytes for entry in self.sites)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "model": self.model,
            "rank": self.rank,
            "world_size": self.world_size,
            "num_records": self.num_records,
            "num_recomputed": self.num_recomputed,
            "num_in_backward": self.num_in_backward,
            "num_evaluated": self.num_evaluated,
            "steps": list(self.steps),
            "nbytes": self.nbytes,
            "sites": [_flat(entry) for entry in self.sites],
            "measured": [_flat_measured(entry) for entry in self.measured],
            "num_measured_steps": self.num_measured_steps,
            "absent": [
                {"site": str(entry.site), "reason": entry.reason, "code": entry.code}
                for entry in self.absent
            ],
        }


def inventory_of(
    index: Index,
    meta: Meta,
    absent: Iterable[Absence],
    measured: Iterable[MeasuredEntry] = (),
    num_measured_steps: int = 0,
) -> Inventory:
    """List the values of an index, without looking at them one by one, and what was measured."""
    tables = index.tables
    phase_codes = np.asarray(index.columns["phase"])
    phases = {name: number for number, name in enumerate(tables.phase)}
    is_forward = phase_codes == phases[FORWARD]
    counts = np.bincount(phase_codes, minlength=len(tables.phase))
    forward = index if is_forward.all() else index.only(is_forward)
    entries = _entries(forward)
    measured_at = {entry.site: entry for entry in measured}
    return Inventory(
        model=meta.model,
        sites=tuple(entries[site] for site in _in_order(entries, meta.modules)),
        num_records=int(is_forward.sum()),
        num_recomputed=int(counts[phases[RECOMPUTE]]),
        num_in_backward=int(counts[phases[BACKWARD]]),
        num_evaluated=int(counts[phases[EVAL]]),
        steps=tuple(distinct(np.asarray(forward.columns["step"])).tolist()),
        absent=tuple(absent),
        measured=tuple(measured_at[site] for site in _in_order(measured_at, meta.modules)),
        num_measured_steps=num_measured_steps,
        rank=meta.rank,
        world_size=meta.world_size,
    )


def inventory_of_contents(held: Contents) -> Inventory:
    """List what a run holds, wherever it is kept."""
    series = held.series
    measured = [
        MeasuredEntry(one.site, one.dtype, one.shape) for one in series.measured if one.is_seen
    ]
    on_disk = held.recorded.values.entries
    index = _index_of(held) if on_disk is None else on_disk
    return inventory_of(index, held.meta, held.source.absent, measured, len(series.steps))


def _index_of(held: Contents) -> Index:
    """Return the values in memory as the index of a folder has them, as far as they are listed."""
    names = ("site", "step", "phase", "dtype", "shape", "nbytes")
    rows = [(site, step, phase, *fact) for site, step, phase, fact in held.index.facts(held.sites)]
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return Index.from_values({name: list(one) for name, one in zip(names, columns, strict=True)})


def inventory_of_file(path: str | Path) -> Inventory:
    """List the run in a file, or in a folder; loads neither values nor torch.

    Raises:
        FileNotFoundError: there is no such file.
        RunError: the file is not a run of torchtap.
    """
    if Path(path).is_dir():
        from torchtap.runs.store.folder_inventory import inventory_of_folder

        return inventory_of_folder(Path(path))
    from torchtap.runs.single_file.description import read_description
    from torchtap.runs.single_file.header import describing

    description = read_description(path)
    with describing(description.header.path):
        return inventory_of(
            description.index,
            description.meta,
            description.absent,
            description.measured,
            description.num_measured_steps,
        )


def _entries(index: Index) -> dict[Site, SiteEntry]:
    names, tables = ("site", "step", "nbytes", "dtype", "shape"), index.tables
    columns = {name: np.asarray(index.columns[name]) for name in names}
    if not len(index):
        return {}
    site = columns["site"].astype(np.int64)
    num_sites = len(tables.site)
    nbytes = np.bincount(site, weights=columns["nbytes"], minlength=num_sites)
    steps = distinct(columns["step"])
    pairs, times = _counted(site * len(steps) + np.searchsorted(steps, columns["step"]))
    owners = pairs // len(steps)
    num_steps = np.bincount(owners, minlength=num_sites)
    calls = np.zeros(num_sites, dtype=np.int64)
    np.maximum.at(calls, owners, times)
    kinds = _per_site(site, columns["dtype"], len(tables.dtype), num_sites)
    shapes = _per_site(site, columns["shape"], len(tables.shape), num_sites)
    return {
        one: SiteEntry(
            site=one,
            dtype="|".join(tables.dtype[code] for code in kinds[number]),
            shape=_common_shape([tables.shape[code] for code in shapes[number]]),
            calls=int(calls[number]),
            steps=int(num_steps[number]),
            nbytes=int(nbytes[number]),
        )
        for number, one in enumerate(tables.site)
    }


def _counted(codes: Any) -> tuple[Any, Any]:
    """Count codes as ``np.unique`` does; where the codes are few, without sorting them."""
    most = int(codes.max()) + 1
    if most > 4 * len(codes):
        return np.unique(codes, return_counts=True)
    times = np.bincount(codes)
    there = np.flatnonzero(times)
    return there, times[there]


def _per_site(site: Any, codes: Any, size: int, num_sites: int) -> list[list[int]]:
    """Return the codes that the values of each site have."""
    listed: list[list[int]] = [[] for _ in range(num_sites)]
    for pair in _counted(site * size + codes)[0].tolist():
        listed[pair // size].append(pair % size)
    return listed


def _in_order(sites: Iterable[Site], modules: Iterable[str]) -> list[Site]:
    """By module, port and arrival."""
    places = {path: place for place, path in enumerate(modules)}
    return sorted(
        sites, key=lambda site: (places.get(site.path, len(places)), PORTS.index(site.port))
    )


def _common_shape(shapes: list[tuple[int, ...]]) -> tuple[int | None, ...] | None:
    """See :attr:`SiteEntry.shape`."""
    if len({len(dims) for dims in shapes}) > 1:
        return None
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))


def _flat(entry: SiteEntry) -> dict[str, Any]:
    return {
        **_flat_measured(entry),
        "calls": entry.calls,
        "steps": entry.steps,
        "nbytes": entry.nbytes,
    }


def _flat_measured(entry: SiteEntry | MeasuredEntry) -> dict[str, Any]:
    return {
        "site": str(entry.site),
        "path": entry.site.path,
        "port": entry.site.port,
        "leaf": entry.site.leaf,
        "dtype": entry.dtype,
        "shape": None if entry.shape is None else list(entry.shape),
    }
