"""Hands statistics to a run of Aim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchtap.core.errors import InputError, MissingExtraError
from torchtap.integrations.logged_step import Logged, LoggedHistogram, LoggedStep, tag_of
from torchtap.integrations.statistics_log import NUMBERS, StatisticsLog


class AimLog(StatisticsLog):
    """A sink that hands statistics and logged numbers to Aim; needs ``tt.Stats`` beside it.

    A series is named by its statistic (``std``, ``histogram``), and its context has the ``site``
    and the ``subset`` (``train``, or ``val`` for evaluation forwards), by which Aim groups.
    Numbers of ``w.log(loss=...)`` have their own name. NaN and Inf are kept as such.

    Args:
        run: an ``aim.Run``; it stays open.
        names: as in :class:`TensorBoardLog`.
        every: as there.
        histograms: as there.

    Raises:
        InputError: an argument is of the wrong kind.
        MissingExtraError: aim is not installed.

    Example:
        >>> import torchtap as tt
        >>> def train(model, steps):
        ...     import aim
        ...     from torchtap.integrations import AimLog
        ...
        ...     with tt.watch(model, to=[tt.Stats(), AimLog(aim.Run())]) as w:
        ...         for step in steps:
        ...             w.log(loss=step(model))
        ...             w.step()
    """

    def __init__(
        self,
        run: Any,
        *,
        names: Sequence[str] = NUMBERS,
        every: int = 1,
        histograms: int = 50,
    ) -> None:
        super().__init__(names, every, histograms)
        try:
            import aim
        except ImportError as error:
            raise MissingExtraError(
                "AimLog needs aim. Install it: pip install 'torchtap[aim]'."
            ) from error
        if not hasattr(run, "track"):
            raise InputError(f"AimLog got a {type(run).__name__}; expected an aim.Run.")
        self._distribution_class = aim.Distribution
        self._run = run

    def _open(self, rank: int | None) -> None:
        """The run is open."""

    def _hand_on_step(self, logged: LoggedStep) -> None:
        for number in logged.numbers:
            self._run.track(number.value, number.name, step=logged.step, context=_context(number))
        for histogram in logged.histograms:
            ends = float(histogram.edges[0]), float(histogram.edges[-1])
            distribution = self._distribution_class(hist=histogram.counts, bin_range=ends)
            self._run.track(
                distribution, "histogram", step=logged.step, context=_context(histogram)
            )

    def _end(self) -> None:
        """The run is the user's, who closes it."""


def _context(one: Logged | LoggedHistogram) -> dict[str, str]:
    if one.site is None:
        return {}
    _, _, site = tag_of("", one.site).partition("/")
    return {"subset": "val" if one.phase == "eval" else "train", "site": site}
