"""Watches what the ``Trainer`` of transformers trains."""

from __future__ import annotations

from functools import cache
from typing import Any

from torchtap.core.errors import MissingExtraError
from torchtap.integrations.watched_training import WatchedTraining


class TrainerEvents(WatchedTraining):
    """A callback of ``transformers.Trainer`` that watches the model which it trains.

    A step is one update of the weights, however many batches its gradient is accumulated over, and
    has the number of updates before it: ``state.global_step`` as the step begins. The numbers that
    the trainer logs afterwards (``loss``, ``grad_norm``, ``eval_loss``) are kept with that step,
    and its evaluations are. Before a checkpoint is saved, what was recorded is committed
    (:meth:`Watch.sync`).

    The trainer does not tell callbacks of an exception. Then the watch is closed, and saved, when
    the next training begins, when trainer and callback are garbage-collected, or when the program
    ends; at once with ``with TrainerWatch(...) as tap: Trainer(..., callbacks=[tap]).train()``.

    Example:
        >>> import torchtap as tt
        >>> def train(model, data):
        ...     from torchtap.integrations import TrainerWatch
        ...     from transformers import Trainer
        ...
        ...     with TrainerWatch("*:output,grad_output", to=tt.Stats()) as tap:
        ...         Trainer(model, train_dataset=data, callbacks=[tap]).train()
        ...     return tap.watch.run.table()
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """The training begins, maybe at a checkpoint."""
        self._begin(about["model"])
        self._name_step(state.global_step)
        self._end_step()  # An evaluation may come first.

    def on_step_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """The first batch of an update begins."""
        self._begin_step(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """The weights were updated."""
        self._end_step()
        self._sync_before_saving(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """An epoch ended."""
        self._sync_before_saving(control)

    def on_save(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """A checkpoint was saved, after an evaluation and a log of its step."""
        self._sync()

    def _sync_before_saving(self, control: Any) -> None:
        # The trainer tells of a checkpoint when it is written: a kill in between would lose steps.
        if control.should_save:
            self._sync()

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: dict[str, Any] | None = None,
        **about: Any,
    ) -> None:
        """The trainer logs."""
        self._log(logs or {})

    def on_train_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        """The training ended, and raised nothing."""
        self.close()


@cache
def watch_class() -> type[TrainerEvents]:
    """Return the callback, as a subclass of the one that transformers wants.

    Raises:
        MissingExtraError: transformers is not installed.
    """
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise MissingExtraError(
            "TrainerWatch is a callback of transformers.Trainer, and transformers cannot be "
            "imported: pip install 'transformers[torch]'"
        ) from error
    about = {"__doc__": TrainerEvents.__doc__, "__module__": "torchtap.integrations"}
    return type("TrainerWatch", (TrainerEvents, TrainerCallback), about)
