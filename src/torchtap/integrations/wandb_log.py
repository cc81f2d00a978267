"""Hands statistics to a run of Weights & Biases."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from torchtap.core.errors import InputError, MissingExtraError
from torchtap.integrations.logged_step import LoggedStep
from torchtap.integrations.statistics_log import NUMBERS, StatisticsLog

STEP = "torchtap/step"


class WandbLog(StatisticsLog):
    """A sink that hands statistics and logged numbers to W&B; needs ``tt.Stats`` beside it.

    The names are those of :class:`TensorBoardLog`. The axis of all charts is ``torchtap/step``,
    the step that the watch counts. A row of W&B has the same number where it can: W&B takes no
    number below the one it has reached, and where the training has logged beyond it, the numbers
    go into the row that is open. NaN and Inf are kept as such.

    Args:
        run: the result of ``wandb.init()``, online or offline; it stays open.
        names: as in :class:`TensorBoardLog`.
        every: as there.
        histograms: as there.

    Raises:
        InputError: an argument is of the wrong kind.
        MissingExtraError: wandb is not installed.

    Example:
        >>> import torchtap as tt
        >>> def train(model, steps):
        ...     import wandb
        ...     from torchtap.integrations import WandbLog
        ...
        ...     with tt.watch(model, to=[tt.Stats(), WandbLog(wandb.init())]) as w:
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
            import wandb
        except ImportError as error:
            raise MissingExtraError(
                "WandbLog needs wandb. Install it: pip install 'torchtap[wandb]'."
            ) from error
        if not hasattr(run, "define_metric"):
            raise InputError(
                f"WandbLog got a {type(run).__name__}; expected the result of wandb.init()."
            )
        self._histogram_class = wandb.Histogram
        self._run = run
        self._open_row = -1

    def _open(self, rank: int | None) -> None:
        self._run.define_metric(STEP, hidden=True)
        for name in (*self._wanted.names, "histogram", "eval"):
            self._run.define_metric(f"{name}/*", step_metric=STEP)

    def _hand_on_step(self, logged: LoggedStep) -> None:
        row: dict[str, Any] = {number.tag: number.value for number in logged.numbers}
        for histogram in logged.histograms:
            cells = (histogram.counts.tolist(), histogram.edges.tolist())
            row[histogram.tag] = self._histogram_class(np_histogram=cells)
        if not row:
            return
        row[STEP] = logged.step
        reached = self._run.step
        if reached <= logged.step:
            self._run.log(row, step=logged.step)
            return
        if reached == self._open_row:
            warnings.warn(
                f"W&B has reached step {reached:,} while the watch is at {logged.step:,}: of "
                f"several steps that fall into one row of W&B only the last is kept. Step with the "
                f"number that the training logs with: w.step(number).",
                stacklevel=2,
            )
        self._open_row = reached
        self._run.log(row, commit=False)

    def _end(self) -> None:
        """The run is the user's, who finishes it."""
