"""Says what is known of one site over all steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from torchtap.core.errors import RunError
from torchtap.core.site import Site
from torchtap.stats.algebra import SampleSum


@dataclass(slots=True)
class SiteSummary:
    """Describes one site of a series.

    Attributes:
        site: where.
        dtype: of its tensors, without ``torch.``; ``mixed`` if they differ.
        shape: of its tensors; ``None`` if they differ.
        itemsize: bytes per element.
        notes: what else is to be known of its numbers.
        mean_sum: sum over all samples (dim 0) of all steps, ``float64``; ``None`` if it could
            not be formed.
        num_samples: how many samples it holds.
        why_no_mean: why there is no ``mean_sum``.
        has_total: whether the histogram over all steps is known, where histograms are counted.
    """

    site: Site
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    itemsize: int = 0
    notes: tuple[str, ...] = ()
    mean_sum: NDArray[Any] | None = None
    num_samples: int = 0
    why_no_mean: str = "it was not asked for, as with tt.Stats(sample_mean=['output'])"
    has_total: bool = True

    @property
    def is_seen(self) -> bool:
        """Return whether anything was measured there."""
        return bool(self.dtype)

    def note(self, notes: Iterable[str]) -> None:
        """Add what else is to be known."""
        self.notes = tuple(dict.fromkeys((*self.notes, *notes)))

    @property
    def samples(self) -> SampleSum:
        """Return the sum over samples, as far as there is one."""
        return SampleSum(self.mean_sum, self.num_samples)

    def take_samples(self, found: SampleSum, otherwise: str) -> None:
        """Take a sum over samples; where there is none, ``otherwise`` says why."""
        self.mean_sum, self.num_samples = found
        self.why_no_mean = "" if found.total is not None else otherwise

    def mean_norm(self) -> float:
        """Return norm of the mean over samples."""
        if self.mean_sum is None or not self.num_samples:
            raise RunError(f"{self.site} has no mean over samples: {self.why_no_mean}.")
        return float(np.linalg.norm(self.mean_sum.reshape(-1) / self.num_samples))


class SiteSummaries(Sequence[SiteSummary]):
    """The summaries of all sites of a series, by place; each is made when it is first asked for.

    Attributes:
        sites: by place.
    """

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self._made: dict[int, SiteSummary] = {}

    def __len__(self) -> int:
        return len(self.sites)

    @overload
    def __getitem__(self, place: int) -> SiteSummary: ...
    @overload
    def __getitem__(self, place: slice) -> list[SiteSummary]: ...
    def __getitem__(self, place: int | slice) -> SiteSummary | list[SiteSummary]:
        found = self._made.get(place) if isinstance(place, int) else None
        if found is not None:
            return found
        places = range(len(self.sites))[place]
        if isinstance(places, range):
            return [self[one] for one in places]
        return self._made.setdefault(places, SiteSummary(self.sites[places]))
