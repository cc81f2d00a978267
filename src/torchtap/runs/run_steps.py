"""The part of a run that tells of its steps: numbers over them, times, sample ids, labels."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from torchtap.core.record import FORWARD
from torchtap.core.site import Site
from torchtap.runs.contents import Contents
from torchtap.runs.source import Source

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class RunSteps:
    """Statistics over the steps of a run, and their times, ids, labels and logged numbers."""

    source: Source

    @abstractmethod
    def _contents(self) -> Contents:
        """Return what the run holds now."""

    @property
    def times(self) -> tuple[list[int], list[float]]:
        """Return the steps that were closed, ascending, and when, in seconds since 1970, UTC."""
        return self.source.notes.times

    def ids(self, step: int) -> list[int | str]:
        """Ids of the samples of a step, as ``w.step(ids=...)`` was given them.

        Raises:
            SiteError: the step was not closed.
        """
        return self.source.notes.ids(step)

    def labels(self, step: int) -> dict[str, Any]:
        """Labels of a step, as ``w.step(split="train")`` was given them.

        Raises:
            SiteError: the step was not closed.
        """
        return self.source.notes.labels(step)

    @property
    def scalar_names(self) -> list[str]:
        """Names of the numbers that ``w.log`` kept, the first that was logged first."""
        return self.source.scalars.names

    def scalars(self, name: str) -> tuple[list[int], list[float]]:
        """Numbers that ``w.log`` kept: the steps, ascending, and the number of each.

        Raises:
            SiteError: nothing was logged under that name.
        """
        return self.source.scalars.of(name)

    def over_steps(
        self, site: str | Site, name: str, *, phase: str = FORWARD
    ) -> tuple[list[int], list[Any]]:
        """Return one statistic of a site over the steps.

        Args:
            site: which.
            name: of a number, such as ``l2``, ``p99`` or ``update_ratio``: as the columns of
                :meth:`table` and ``to_frame()``, which docs/guides/statistics.md lists. Or of a
                further statistic (``cosine``), or of a part of its result (``units.zeros``, one
                ``float64[slices]`` per step).
            phase: as in :meth:`stats`.

        Returns:
            the steps, ascending, and its value in each. Steps in which the site was not measured
            are left out (an ``update`` that the optimizer skipped; ``absent`` says why). A number
            that is kept of the last steps only (quantiles, shares and further statistics; see
            ``tt.Stats(keep=...)``) is that of those steps.

        Raises:
            SiteError: there is no such statistic.
            RunError: it was asked for, and is not available in any step.
        """
        return self._contents().in_phase(phase).statistics.over_steps(site, name)

    def array(self, site: str | Site, name: str, *, phase: str = FORWARD) -> NDArray[np.float64]:
        """One number of a site in every step of the run, for figures and searches over many sites.

        Args:
            site: which.
            name: of a number, or of a part of a further statistic that is one, as in
                :meth:`over_steps`.
            phase: as in :meth:`stats`.

        Returns:
            ``float64[steps]``, in the order of :attr:`steps`. NaN where the site was not measured,
            where the number is kept no longer, and where it is NaN itself, as the mean of a tensor
            without a finite element. Counts are exact below 2^53.

        Raises:
            SiteError: nothing was recorded or measured there, or there is no such statistic.
            InputError: it is no number.

        Example:
            >>> import torch, torchtap as tt
            >>> with tt.watch(relu := torch.nn.ReLU(), to=tt.Stats()) as w:
            ...     for step in range(3):
            ...         _ = relu(torch.full((2,), float(step)))
            ...         w.step()
            >>> w.run.array(".:output", "l1")
            array([0., 2., 4.])
        """
        held = self._contents()
        return held.in_phase(phase).statistics.array(site, name, held.steps)
