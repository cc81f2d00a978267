"""Hands statistics to a run of MLflow."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Any

from torchtap.core.errors import InputError, MissingExtraError
from torchtap.integrations.logged_step import LoggedStep
from torchtap.integrations.statistics_log import NUMBERS, StatisticsLog

_MOST = 1000
"""Numbers that MLflow takes in one batch."""
_LONGEST = 250
"""Characters of a name."""
_UNKNOWN = re.compile(r"[^\w\-. :/]")
_UNDER_WAY = 16
"""Batches that MLflow may still be writing; then the training waits for the first of them."""


class MlflowLog(StatisticsLog):
    """A sink that hands statistics and logged numbers to MLflow; needs ``tt.Stats`` beside it.

    The names are those of :class:`TensorBoardLog`, with a dot for each character that MLflow does
    not take (``std/fc:param_grad.weight.``), and no longer than 250. MLflow writes in a thread of
    its own. It has no histograms. NaN is kept as such; Inf too in files, and as 1.8e308 in a
    database, so ``nonfinite`` counts both.

    Args:
        run_id: of the run; by default the active one (``mlflow.start_run()``) when the watch
            begins, or when :meth:`write` is called.
        names: as in :class:`TensorBoardLog`.
        every: as there.

    Raises:
        InputError: an argument is of the wrong kind. No run is active, when a watch begins.
        MissingExtraError: mlflow is not installed.

    Example:
        >>> import torchtap as tt
        >>> def train(model, steps):
        ...     import mlflow
        ...     from torchtap.integrations import MlflowLog
        ...
        ...     with mlflow.start_run(), tt.watch(model, to=[tt.Stats(), MlflowLog()]) as w:
        ...         for step in steps:
        ...             w.log(loss=step(model))
        ...             w.step()
    """

    def __init__(
        self, run_id: str | None = None, *, names: Sequence[str] = NUMBERS, every: int = 1
    ) -> None:
        super().__init__(names, every, 0)
        try:
            import mlflow
        except ImportError as error:
            raise MissingExtraError(
                "MlflowLog needs mlflow. Install it: pip install 'torchtap[mlflow]'."
            ) from error
        self._mlflow = mlflow
        self._given, self._id = run_id, ""
        self._client: Any = None
        self._keys: dict[str, str] = {}
        self._taken: set[str] = set()
        self._under_way: deque[Any] = deque()

    def _open(self, rank: int | None) -> None:
        active = self._mlflow.active_run()
        if self._given is None and active is None:
            raise InputError(
                "MlflowLog() hands to the active run of MLflow, and none is: begin one with "
                "mlflow.start_run() before, or give its id: MlflowLog(run_id)."
            )
        self._id = self._given or active.info.run_id
        self._client = self._mlflow.MlflowClient()

    def _hand_on_step(self, logged: LoggedStep) -> None:
        from mlflow.entities import Metric

        when = round(logged.time * 1000)
        metrics = [
            Metric(self._key(number.tag), number.value, when, logged.step)
            for number in logged.numbers
        ]
        for first in range(0, len(metrics), _MOST):
            part = metrics[first : first + _MOST]
            self._under_way.append(self._client.log_batch(self._id, part, synchronous=False))
        while len(self._under_way) > _UNDER_WAY:
            self._under_way.popleft().wait()

    def _key(self, tag: str) -> str:
        """Return a name that MLflow takes, another one for each series."""
        if tag not in self._keys:
            key = text = _UNKNOWN.sub(".", tag)[: _LONGEST - 8]
            number = 1
            while key in self._taken:
                key, number = f"{text}.{number}", number + 1
            self._taken.add(key)
            self._keys[tag] = key
        return self._keys[tag]

    def _end(self) -> None:
        while self._under_way:
            self._under_way.popleft().wait()
