"""The part of a run that tells of its steps: when each ended, whose samples, what was logged."""

from __future__ import annotations

from typing import Any

from torchtap.runs.source import Source


class RunSteps:
    """Times, ids, labels and logged numbers of the steps of a run."""

    source: Source

    @property
    def times(self) -> tuple[list[int], list[float]]:
        """The steps that were closed, ascending, and when, in seconds since 1970, UTC."""
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
