"""A watch that begins and ends with a training."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from torchtap.capture.watch import To, watch as open_watch
from torchtap.capture.watch_handle import Every, Watch
from torchtap.core.distributed import num_ranks
from torchtap.core.errors import CaptureError, TorchtapError
from torchtap.core.module_paths import Where
from torchtap.runs.file_name import refuse_other_kind
from torchtap.runs.run import Run
from torchtap.runs.single_file.write_run import with_rank


class WatchedTraining:
    """The base of the callbacks of all trainers.

    It is closed, and saved if a path is given, when the training ends or raises. If a trainer
    does not tell its callbacks of exceptions, that is when the next training begins, when the
    callback is garbage-collected, or when the program ends; as a context manager, or with
    :meth:`close`, at once.

    Args:
        where: what to watch, as in :func:`torchtap.watch`.
        to: where records go, as there. Sinks that are given take all trainings of this callback.
        every: record every so many steps, or a function of the step. Steps have the trainer's
            numbers.
        copy: as in :func:`torchtap.watch`.
        grad_input: as in :func:`torchtap.watch`.
        edits: as in :func:`torchtap.watch`.
        evaluation: ``record`` evaluation forwards apart, or ``skip`` them.
        path: a file to save the run to. Each of several ranks saves its own, with
            the rank before the ending: ``run.rank0.safetensors``.
    """

    def __init__(
        self,
        where: Where = "*",
        *,
        to: To = None,
        every: Every = 1,
        copy: Literal["auto", "always", "never"] = "auto",
        grad_input: Literal["through", "total"] = "through",
        edits: Literal["after", "before"] = "after",
        evaluation: Literal["record", "skip"] = "record",
        path: str | Path | None = None,
    ) -> None:
        self._where = where
        self._how: dict[str, Any] = {
            "to": to,
            "every": every,
            "copy": copy,
            "grad_input": grad_input,
            "edits": edits,
            "evaluation": evaluation,
        }
        if path is not None:
            refuse_other_kind(Path(path))  # Not after the training.
        self._path = path
        self._watch: Watch | None = None
        self._between_steps = ExitStack()
        self._end: weakref.finalize[..., Any] | None = None

    @property
    def watch(self) -> Watch:
        """Return the watch of the training that runs, or of the last one.

        Raises:
            CaptureError: no training has begun.
        """
        if self._watch is None:
            raise CaptureError(
                f"This {type(self).__name__} has seen no training yet; give it to a trainer, and "
                f"train."
            )
        return self._watch

    @property
    def run(self) -> Run:
        """Return all that was kept of that training so far.

        Raises:
            CaptureError: no training has begun, or none of the sinks can be read again.
        """
        return self.watch.run

    def close(self) -> None:
        """Take everything off the model, and save the run if a path was given. Safe to call twice.

        Raises:
            Exception: what closing the watch raises.
            OSError: the run cannot be written.
        """
        if self._end is not None:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._fail(error)

    # ------------------------------------------------------------------ for the trainers' callbacks

    def _begin(self, model: nn.Module, *, off: Callable[[], object] | None = None) -> Watch:
        """A training begins.

        Args:
            model: that it trains.
            off: called when the watch is closed.
        """
        self.close()  # The last training raised, and the trainer did not say so.
        made = open_watch(model, self._where, **self._how)
        file = None
        if self._path is not None:
            file = _file_of_rank(self._path)
            try:
                _ = made.run
            except CaptureError:  # Better now than when the training has ended.
                made.close()
                raise
        self._watch = made
        self._between_steps = ExitStack()
        self._end = weakref.finalize(self, _end, made, file, off or _nothing, os.getpid())
        return made

    @property
    def _is_watching(self) -> bool:
        return self._end is not None and self._end.alive

    def _begin_step(self, number: int) -> None:
        """A step begins, unless it is the one that runs."""
        if self._is_watching:
            self._between_steps.close()
            self._name_step(number)

    def _name_step(self, number: int) -> None:
        if self._is_watching and number != self.watch.current_step:
            self.watch.step(number)

    def _end_step(self) -> None:
        """Treat what runs until the next step begins as evaluation: it does not train."""
        if self._is_watching:
            self._between_steps.close()
            self._between_steps.enter_context(self.watch.evaluating())

    def _sync(self) -> None:
        """A checkpoint is saved: what was recorded is to be committed by then."""
        if self._is_watching:
            self.watch.sync()

    def _log(self, values: Mapping[str, Any]) -> None:
        """Keep those that are numbers with the running step."""
        if self._is_watching:
            self.watch.log(**{name: value for name, value in values.items() if _is_number(value)})

    def _fail(self, error: BaseException) -> None:
        """The training raised: close, and hide its exception by none of our own."""
        if not self._is_watching:
            return
        self.watch.__exit__(type(error), error, error.__traceback__)
        try:
            self.close()
        except (OSError, TorchtapError) as failure:
            error.add_note(f"torchtap could not save what it had recorded: {failure}")


def _nothing() -> None:
    """There is nothing else to take off."""


def _end(watch: Watch, file: Path | None, off: Callable[[], object], process: int) -> None:
    if os.getpid() != process:  # A forked worker of a data loader ends.
        return
    off()
    try:
        watch.close()
    finally:
        if file is not None:
            watch.run.save(file)


def _file_of_rank(path: str | Path) -> Path:
    if num_ranks() > 1:
        return with_rank(Path(path), torch.distributed.get_rank())
    return Path(path)


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, Real) and not isinstance(value, bool)
