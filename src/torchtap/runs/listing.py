"""The list of the contents of a run, by site and without values; of a file, without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torchtap.core.absence import Absence
from torchtap.core.record import BACKWARD, EVAL, FORWARD, RECOMPUTE
from torchtap.core.site import PORTS, Site
from torchtap.runs.single_file.header import UNPROTECTED, Header, describing, read_header

PREFIX = "torchtap.stats"
"""Names of what was measured begin so; no record's can, since it has a colon before a hash."""


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
class Listing:
    """The list of the contents of a run.

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
            "absent": [{"site": str(entry.site), "reason": entry.reason} for entry in self.absent],
        }


class ListedValue(NamedTuple):
    """One value, without its elements."""

    site: Site
    step: int
    phase: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def list_saved(path: str | Path) -> Listing:
    """List the run in a file; loads neither values nor torch.

    Raises:
        FileNotFoundError: there is no such file.
        RunError: the file is not a run of torchtap.
    """
    header = read_header(path)
    body = header.body()
    with describing(header.path):
        return _listed(header, body)


def _listed(header: Header, body: Mapping[str, Any]) -> Listing:
    values = [
        ListedValue(one.site, one.step, one.phase, one.dtype, one.shape, nbytes)
        for one in header.values(body)
        for nbytes in [header.tensors[one.name].nbytes]
    ]
    absent = [Absence(Site(where, port, leaf), why) for where, port, leaf, why in body["absent"]]
    if header.crc32 is None:
        absent.append(Absence(Site(""), UNPROTECTED))
    meta = body["meta"]
    found = listing_of(meta["model"], meta["modules"], values, absent)
    found = replace(found, rank=meta.get("rank", 0), world_size=meta.get("world_size", 1))
    series = body.get("series") or {}
    if not series:
        return found
    measured = [
        MeasuredEntry(
            Site(*entry["site"]),
            entry["dtype"],
            None if entry["shape"] is None else tuple(entry["shape"]),
        )
        for entry in series["sites"]
        if entry["dtype"]
    ]
    num_steps = header.tensors[f"{PREFIX}.steps"].shape[0]
    return with_measured(found, meta["modules"], measured, num_steps)


def listing_of(
    model: str, modules: Iterable[str], values: list[ListedValue], absent: Iterable[Absence]
) -> Listing:
    groups: dict[Site, list[ListedValue]] = {}
    for value in values:
        if value.phase == FORWARD:
            groups.setdefault(value.site, []).append(value)
    ordered = in_order(groups, modules)
    num_records = sum(map(len, groups.values()))
    phases = Counter(value.phase for value in values)
    return Listing(
        model=model,
        sites=tuple(_entry(site, groups[site]) for site in ordered),
        num_records=num_records,
        num_recomputed=phases[RECOMPUTE],
        num_in_backward=phases[BACKWARD],
        num_evaluated=phases[EVAL],
        steps=tuple(sorted({value.step for group in groups.values() for value in group})),
        absent=tuple(absent),
    )


def in_order(sites: Iterable[Site], modules: Iterable[str]) -> list[Site]:
    """By module, port and arrival."""
    places = {path: place for place, path in enumerate(modules)}
    return sorted(
        sites, key=lambda site: (places.get(site.path, len(places)), PORTS.index(site.port))
    )


def with_measured(
    listing: Listing, modules: Iterable[str], measured: Iterable[MeasuredEntry], num_steps: int
) -> Listing:
    by_site = {entry.site: entry for entry in measured}
    ordered = tuple(by_site[site] for site in in_order(by_site, modules))
    return replace(listing, measured=ordered, num_measured_steps=num_steps)


def _entry(site: Site, values: list[ListedValue]) -> SiteEntry:
    per_step: dict[int, int] = {}
    for value in values:
        per_step[value.step] = per_step.get(value.step, 0) + 1
    return SiteEntry(
        site=site,
        dtype="|".join(dict.fromkeys(value.dtype for value in values)),
        shape=common_shape([value.shape for value in values]),
        calls=max(per_step.values()),
        steps=len(per_step),
        nbytes=sum(value.nbytes for value in values),
    )


def common_shape(shapes: list[tuple[int, ...]]) -> tuple[int | None, ...] | None:
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
