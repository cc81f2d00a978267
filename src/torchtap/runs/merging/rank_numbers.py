"""The numbers of each rank in a merged run: which rank is the outlier."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.errors import RunError, SiteError
from torchtap.core.record import steps_there
from torchtap.core.site import Site
from torchtap.runs.contents import Contents
from torchtap.runs.merging.row_comparison import aligned
from torchtap.stats.algebra import Rows
from torchtap.stats.named_numbers import NAMES, value_of
from torchtap.stats.readable import measure_into
from torchtap.stats.rows import NUM_TENSORS, ROW_WIDTH, SUM_SQUARES, empty_rows
from torchtap.stats.statistics import from_row

TENSOR = "torchtap.ranks"
"""Name of the rows in a file, ``float64[ranks, steps, sites, 16]``."""


class RankNumbers:
    """The rows of every rank, step and site, also of what cannot be merged.

    Args:
        ranks: whose, ascending.
        steps: which any of them has, ascending.
        common: those that all of them have.
        sites: which any of them recorded or measured.
        read: gives the rows, ``float64[ranks, steps, sites, 16]``; called once, when one is needed.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        steps: Sequence[int],
        common: Sequence[int],
        sites: Sequence[Site],
        read: Callable[[], Rows],
    ) -> None:
        self.ranks = list(ranks)
        self.steps = list(steps)
        self.common = list(common)
        self.sites = list(sites)
        self._read = read

    @cached_property
    def rows(self) -> Rows:
        """Return ``float64[ranks, steps, sites, 16]``."""
        return self._read()

    def over_ranks(self, site: Site, name: str, step: int | None) -> tuple[list[int], list[float]]:
        """See :meth:`Run.over_ranks <torchtap.runs.run.Run.over_ranks>`."""
        _refuse_unknown(name)
        place = self.sites.index(site)
        own = self.rows[:, :, place]
        there = [one for n, one in enumerate(self.steps) if own[:, n, NUM_TENSORS].any()]
        if step is None:
            step = max(set(there) & set(self.common) or there, default=None)
        if step is None or step not in there:
            raise SiteError(
                f"No rank has a value of {site} in step {step}. {steps_there(there, step)}"
            )
        here = own[:, self.steps.index(step)]
        weights = self._weights(site, step)
        return self.ranks, [_number(*one, name) for one in zip(here, weights, strict=True)]

    def _weights(self, site: Site, step: int) -> list[float]:
        """Return, for an update, the norm of each rank's parameter when the step began."""
        param = site.compared_with
        if param is None or param not in self.sites:
            return [math.nan] * len(self.ranks)
        rows = self.rows[:, self.steps.index(step), self.sites.index(param)]
        return [math.sqrt(row[SUM_SQUARES]) if row[NUM_TENSORS] else math.nan for row in rows]

    # ------------------------------------------------------------------ to a file and back

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the numbers as a named tensor, and the rest as a body that JSON can hold."""
        body = {
            "ranks": self.ranks,
            "steps": self.steps,
            "common": self.common,
            "sites": [[site.path, site.port, site.leaf] for site in self.sites],
        }
        return {TENSOR: torch.from_numpy(np.ascontiguousarray(self.rows))}, body

    @staticmethod
    def unpack(body: Mapping[str, Any], read: Callable[[str], Tensor]) -> RankNumbers:
        """Restore the numbers from the result of :meth:`pack`.

        Args:
            body: its JSON.
            read: gives a tensor of the file by its name.
        """
        sites = [Site(*parts) for parts in body["sites"]]
        numbers = (body["ranks"], body["steps"], body["common"])
        return RankNumbers(*numbers, sites, lambda: read(TENSOR).numpy())


def _number(row: Rows, weight_l2: float, name: str) -> float:
    if not row[NUM_TENSORS]:
        return math.nan
    return float(value_of(from_row(row.tolist(), weight_l2=weight_l2), name))


def _refuse_unknown(name: str) -> None:
    if name not in NAMES:
        raise SiteError(f"There is no number {name!r}{did_you_mean(name, list(NAMES))}")
    if NAMES[name].needs_histogram or name == "nbytes":
        raise RunError(
            f"{name!r} is not kept of each rank in a merged run. Read it from the run of that "
            f"rank: tt.open(FILE).stats(SITE)."
        )


# ---------------------------------------------------------------------- of each rank


def numbers_of_ranks(held: Mapping[int, Contents], common: Sequence[int]) -> RankNumbers:
    """Return the numbers of some ranks: as they were measured, or of the values that were kept.

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
    """Return ``float64[steps, sites, 16]`` of one rank."""
    rows = empty_rows(len(steps) * len(sites)).reshape(len(steps), len(sites), ROW_WIDTH)
    step_places = {step: place for place, step in enumerate(steps)}
    for place, site in enumerate(sites):
        for record in held.index.records_of(site, held.statistics.unmeasured_steps(site)):
            if not record.overwritten:
                measure_into(rows[step_places[record.step], place], record.value)
    rows_of_rank: Rows = rows.numpy()
    measured = aligned(held.series, steps)
    for place, site in enumerate(sites):
        if site in held.series:
            own = measured[:, held.series.known_place(site)]
            is_measured = own[:, NUM_TENSORS] > 0
            rows_of_rank[is_measured, place] = own[is_measured]
    return rows_of_rank
