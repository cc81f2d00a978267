"""Watches what a loop with Accelerate trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from torch import nn

from torchtap.capture.training.model_steps import ModelSteps
from torchtap.capture.watch import To
from torchtap.capture.watch_handle import Every
from torchtap.core.module_paths import Where
from torchtap.integrations.watched_training import WatchedTraining


class AccelerateWatch(WatchedTraining):
    """A watch that steps when an optimizer of its model has really made a step.

    ``optimizer.step()`` of Accelerate does nothing while gradients are accumulated. A step ends
    where the next one begins: at the first training forward of the model after an optimizer of it
    has updated the weights, or after Accelerate skipped that because gradients were not finite.
    So evaluations and what is logged in between belong to the step before.

    The model may be given before or after ``accelerator.prepare``. Give what ``prepare`` returns if
    it compiles the model: inside of a compiled model no forward is heard of, and each step of an
    optimizer ends a step.

    ``accelerator.save_state()`` commits what was recorded (:meth:`Watch.sync`) before it saves; a
    loop that saves in another way calls ``w.watch.sync()`` first.

    Args:
        accelerator: of the loop.
        model: that it trains.
        where: as in :func:`torchtap.watch`, as all that follows.
        path: a file to save the run to. Each of several ranks saves its own, with the rank before
            the ending: ``run.rank0.safetensors``.

    Example:
        >>> import torch, torchtap as tt
        >>> from accelerate import Accelerator
        >>> from torchtap.integrations import AccelerateWatch
        >>> accelerator = Accelerator(cpu=True)
        >>> model = torch.nn.Linear(2, 1)
        >>> model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        >>> with AccelerateWatch(accelerator, model, to=tt.Stats()) as w:
        ...     for batch in torch.ones(3, 4, 2):
        ...         accelerator.backward(model(batch).sum())
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        >>> w.watch.run.over_steps(".", "mean")[0]
        [0, 1, 2]
    """

    def __init__(
        self,
        accelerator: Any,
        model: nn.Module,
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
        super().__init__(
            where,
            to=to,
            every=every,
            copy=copy,
            grad_input=grad_input,
            edits=edits,
            evaluation=evaluation,
            path=path,
        )
        steps = _Steps(accelerator, model)
        watch = self._begin(model, off=steps.release)
        steps.next_step, steps.sync = watch.step, watch.sync
        # After the watch: its own hook has seen the update by the time that a step may end.
        steps.attach()


class _Steps:
    """Notices where the steps of one model end.

    Attributes:
        next_step: called where the next step begins.
        sync: called before a checkpoint is saved.
    """

    next_step: Callable[[], object]
    sync: Callable[[], object]

    def __init__(self, accelerator: Any, model: nn.Module) -> None:
        self._accelerator = accelerator
        self._is_heard = self._has_stepped = self._was_last_batch = False
        self._steps = ModelSteps(model, begins=self.enter, updated=self.end)
        self.release = self._steps.release

    def attach(self) -> None:
        """Put the hooks on."""
        self._steps.attach(self._accelerator.register_save_state_pre_hook(self.save))

    def save(self, models: Any, weights: Any, folder: Any) -> None:
        """``accelerator.save_state()`` begins."""
        self.sync()

    def enter(self) -> None:
        """A training forward of the model begins."""
        was_skipped = self._was_last_batch and self._accelerator.optimizer_step_was_skipped
        self._is_heard, self._was_last_batch = True, self._accelerator.sync_gradients
        if self._has_stepped or was_skipped:
            self._has_stepped = False
            self.next_step()

    def end(self) -> None:
        """An optimizer updated the model."""
        self._has_stepped = self._is_heard
        if not self._is_heard:
            self.next_step()


def watch_class() -> type[AccelerateWatch]:
    """Return the class itself: it imports nothing of Accelerate."""
    return AccelerateWatch
