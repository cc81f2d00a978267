"""List the contents of a folder, site by site, from its indices alone. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from torchtap.core.absence import Absence
from torchtap.core.errors import RunError
from torchtap.core.record import BACKWARD, EVAL, FORWARD, RECOMPUTE
from torchtap.core.site import Site
from torchtap.runs.listing import Listing, SiteEntry, common_shape, in_order, list_saved
from torchtap.runs.meta import Meta, meta_of
from torchtap.runs.records import distinct
from torchtap.runs.store.attempt_reader import AttemptReader
from torchtap.runs.store.history import WHOLE_RUN, absences, counted, limits_of
from torchtap.runs.store.index import Index, joined
from torchtap.runs.store.layout import (
    ATTEMPT,
    JOURNAL,
    RUN,
    SERIES,
    SERIES_DAMAGED,
    attempts_in,
    ranks_in,
    read_json,
)


def list_folder(path: Path) -> Listing:
    """List a run in a folder; of several ranks all their values, not merged.

    Raises:
        RunError: it is no run.
    """
    ranks = attempts_by_rank(path)
    indices, absent, metas, measured = [], list[Absence](), list[Meta](), list[Listing]()
    for number, attempts in ranks.items():
        limits = limits_of(attempts)
        indices += [counted(one.index, limits[key]) for key, one in attempts.items()]
        where = f"rank {number}: " if len(ranks) > 1 else ""
        absent += [entry._replace(reason=f"{where}{entry.reason}") for entry in absences(attempts)]
        last = list(attempts.values())[-1]
        metas.append(meta_of(last.facts.get("meta", {})))
        if "series" in last.facts:
            try:
                measured.append(list_saved(last.folder / SERIES))
            except (OSError, RunError):
                absent.append(Absence(WHOLE_RUN, f"{where}{SERIES_DAMAGED}"))
    whole = joined([one for one in indices if len(one)] or [Index.empty()])
    meta = metas[0]
    listing = list_index(whole, meta.model, meta.modules, absent)
    if measured:
        listing = replace(
            listing,
            measured=measured[0].measured,
            num_measured_steps=measured[0].num_measured_steps,
        )
    rank = meta.rank if len(ranks) == 1 else None
    return replace(listing, rank=rank, world_size=meta.world_size)


def attempts_by_rank(path: Path) -> dict[int, dict[int, AttemptReader]]:
    """The attempts of each rank of a run; of one rank, or one attempt, where that is the folder.

    Raises:
        RunError: it is no run.
    """
    if (path / JOURNAL).is_file() or (path / ATTEMPT).is_file():
        one = AttemptReader(path)
        return {int(one.facts.get("rank", 0)): {0: one}}
    if (path / RUN).exists():
        read_json(path / RUN)
    folders = {0: path} if attempts_in(path) else ranks_in(path)
    found = {
        number: {n: AttemptReader(one) for n, one in attempts_in(folder).items()}
        for number, folder in folders.items()
    }
    found = {number: attempts for number, attempts in found.items() if attempts}
    if not found:
        raise RunError(f"{path} is a folder and no run: it has none of the folders rank-00000, ...")
    return found


def list_index(
    index: Index, model: str, modules: Iterable[str], absent: Sequence[Absence]
) -> Listing:
    """List the values of an index, without looking at them one by one."""
    tables = index.tables
    found = np.asarray(index.columns["phase"])
    phases = {name: number for number, name in enumerate(tables.phase)}
    is_forward = found == phases[FORWARD]
    counts = np.bincount(found, minlength=len(tables.phase))
    forward = index if is_forward.all() else index.only(is_forward)
    entries = _entries(forward)
    ordered = in_order(entries, modules)
    return Listing(
        model=model,
        sites=tuple(entries[site] for site in ordered),
        num_records=int(is_forward.sum()),
        num_recomputed=int(counts[phases[RECOMPUTE]]),
        num_in_backward=int(counts[phases[BACKWARD]]),
        num_evaluated=int(counts[phases[EVAL]]),
        steps=tuple(distinct(np.asarray(forward.columns["step"])).tolist()),
        absent=tuple(absent),
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
            shape=common_shape([tables.shape[code] for code in shapes[number]]),
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
    """The codes that the values of each site have."""
    listed: list[list[int]] = [[] for _ in range(num_sites)]
    for pair in _counted(site * size + codes)[0].tolist():
        listed[pair // size].append(pair % size)
    return listed
