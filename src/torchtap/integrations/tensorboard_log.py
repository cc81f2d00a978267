"""Writes statistics as TensorBoard reads them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchtap.core.errors import InputError, MissingExtraError
from torchtap.integrations.logged_step import LoggedHistogram, LoggedStep
from torchtap.integrations.statistics_log import NUMBERS, StatisticsLog


class TensorBoardLog(StatisticsLog):
    """A sink that hands statistics and logged numbers to TensorBoard; needs ``tt.Stats`` beside it.

    The numbers of a site are the series ``std/fc:output``, those of evaluation forwards
    ``eval/std/fc:output``, its histograms ``histogram/fc:output``, numbers of ``w.log(loss=...)``
    ``loss``. All numbers of a step are one event. The step is the one that the watch counts.

    TensorBoard keeps float32: a number beyond 3.4e38 is Inf there. NaN and Inf are kept as such.

    Args:
        writer: a folder of event files, which is made (with several ranks each has a folder
            ``rank0``, ... in it), or a ``SummaryWriter``, which stays open.
        names: of the numbers, as in :meth:`Run.over_steps`. A number that a site does not have is
            left out; one of a tensor in which nothing is finite is NaN.
        every: hand on the statistics of steps whose number is divisible by ``every``, and by then
            the logged numbers of all steps.
        histograms: hand on the histograms of steps whose number is divisible by it; 0 for none.
            They have 64 equal cells. A run that is finished has those of its last steps.

    Raises:
        InputError: an argument is of the wrong kind.
        MissingExtraError: tensorboard is not installed.

    Example:
        >>> import tempfile, torch, torchtap as tt
        >>> from torchtap.integrations import TensorBoardLog
        >>> relu, log = torch.nn.ReLU(), TensorBoardLog(tempfile.mkdtemp())
        >>> with tt.watch(relu, to=[tt.Stats(), log]) as w:
        ...     for step in range(3):
        ...         _ = relu(torch.full((2,), float(step)))
        ...         w.log(loss=0.5)
        ...         w.step()
        >>> log.write(w.run)  # The same once more, of the run.
        3
    """

    def __init__(
        self,
        writer: Any,
        *,
        names: Sequence[str] = NUMBERS,
        every: int = 1,
        histograms: int = 50,
    ) -> None:
        super().__init__(names, every, histograms)
        self._folder = Path(writer) if isinstance(writer, str | os.PathLike) else None
        self._summary_writer()
        if self._folder is None and not hasattr(writer, "add_histogram_raw"):
            raise InputError(
                f"TensorBoardLog got a {type(writer).__name__}; expected a folder or a "
                f"SummaryWriter."
            )
        self._writer = None if self._folder is not None else writer

    def _summary_writer(self) -> Any:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(
                "TensorBoardLog needs tensorboard. Install it: pip install 'torchtap[tensorboard]'."
            ) from error
        return SummaryWriter

    def _open(self, rank: int | None) -> None:
        if self._folder is not None:
            folder = self._folder if rank is None else self._folder / f"rank{rank}"
            self._writer = self._summary_writer()(str(folder))

    def _hand_on_step(self, logged: LoggedStep) -> None:
        from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

        assert self._writer is not None
        files = getattr(self._writer, "file_writer", None)
        if files is None:  # A writer of another kind, or one that was closed and opens again.
            self._add_each(self._writer, logged)
            return
        # One event for all: an event for each takes ten times as long.
        values = [
            Summary.Value(tag=number.tag, simple_value=number.value) for number in logged.numbers
        ]
        values += [
            Summary.Value(tag=histogram.tag, histo=HistogramProto(**_raw(histogram)))
            for histogram in logged.histograms
        ]
        if values:
            files.add_summary(Summary(value=values), logged.step, logged.time)

    def _add_each(self, writer: Any, logged: LoggedStep) -> None:
        for number in logged.numbers:
            writer.add_scalar(number.tag, number.value, logged.step, logged.time)
        for histogram in logged.histograms:
            raw = _raw(histogram)
            raw["bucket_limits"], raw["bucket_counts"] = raw.pop("bucket_limit"), raw.pop("bucket")
            writer.add_histogram_raw(
                histogram.tag, global_step=logged.step, walltime=logged.time, **raw
            )

    def _end(self) -> None:
        if self._writer is None:
            return
        if self._folder is None:
            self._writer.flush()
        else:
            self._writer.close()
            self._writer = None


def _raw(one: LoggedHistogram) -> dict[str, Any]:
    """Return a histogram as the fields of TensorBoard's."""
    num = int(one.counts.sum())
    return {
        "min": float(one.edges[0]),
        "max": float(one.edges[-1]),
        "num": num,
        "sum": one.mean * num,
        "sum_squares": one.rms * one.rms * num,
        "bucket_limit": one.edges[1:].tolist(),
        "bucket": one.counts.tolist(),
    }
