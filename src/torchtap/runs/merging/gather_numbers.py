"""Gathers the numbers of each rank, as they were measured, or of the values that were kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from torchtap.core.site import Site
from torchtap.runs.contents import Contents
from torchtap.runs.merging.rank_numbers import RankNumbers
from torchtap.runs.merging.rows import aligned
from torchtap.stats.measure import measure_into
from torchtap.stats.series import Rows
from torchtap.stats.statistics import NUM_TENSORS, ROW_WIDTH, empty_rows


def gather(held: Mapping[int, Contents], common: Sequence[int]) -> RankNumbers:
    """The numbers of some ranks: as they were measured, or of the values that were kept.

    Args:
        held: rank -> what it has.
        common: steps that all have.
    """
    steps = sorted({step for one in held.values() for step in one.steps})
    sites = list(dict.fromkeys(site for one in held.values() for site in one.sites))

    def read() -> Rows:  # It measures values that were kept: only if it is asked for.
        return np.stack([_rows(one, steps, sites) for one in held.values()])

    return RankNumbers(list(held), steps, common, sites, read)


def _rows(held: Contents, steps: Sequence[int], sites: Sequence[Site]) -> Rows:
    """``float64[steps, sites, 16]`` of one rank."""
    rows = empty_rows(len(steps) * len(sites)).reshape(len(steps), len(sites), ROW_WIDTH)
    step_places = {step: place for place, step in enumerate(steps)}
    for place, site in enumerate(sites):
        for record in held.records_of(site, held.only_kept(site)):
            if not record.overwritten:
                measure_into(rows[step_places[record.step], place], record.value)
    found: Rows = rows.numpy()
    measured = aligned(held.series, steps)
    for place, site in enumerate(sites):
        if site in held.series:
            own = measured[:, held.series.known_place(site)]
            is_measured = own[:, NUM_TENSORS] > 0
            found[is_measured, place] = own[is_measured]
    return found
