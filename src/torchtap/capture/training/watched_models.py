"""The models of a program that are watched."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Protocol

from torch import nn

from torchtap.capture.training.optimizer_cycle import OptimizerCycle, OptimizerState
from torchtap.capture.training.trained_model import Entered, TrainedModel
from torchtap.capture.watch_handle import Watch
from torchtap.core.module_paths import unwrapped
from torchtap.core.record import Sink
from torchtap.stats.sink import Stats

MOST_MODELS = 16
"""A search over settings may train hundreds of models, one after the other."""


class Destination(Protocol):
    """Takes what is recorded of each model of a program."""

    def sinks(self, model: TrainedModel) -> list[Sink]:
        """Return the sinks of a model that is to be watched."""

    def begin(self, model: TrainedModel) -> int:
        """The training of a model begins; returns the number of its first step."""

    def drop(self, model: TrainedModel) -> None:
        """A model only ran, and another one is trained: nothing of it is to be kept."""


class Measured:
    """Measures each model, and keeps the statistics in memory."""

    def sinks(self, model: TrainedModel) -> list[Sink]:
        """Return ``tt.Stats``; means over samples would take a copy of each output."""
        return [Stats(sample_mean=())]

    def begin(self, model: TrainedModel) -> int:
        """Steps count from 0."""
        return 0

    def drop(self, model: TrainedModel) -> None:
        """They are gone with the watch."""


class WatchedModels:
    """Watches models, and forgets those that turn out not to be trained.

    Args:
        open_watch: opens the watch of a model; returns ``None`` if it cannot be watched.
        destination: takes what is recorded.
        cycle: follows the training of those that are watched.
        entered: called with each forward of a model.
        counts_backwards: whether backwards end the steps, instead of the optimizers.

    Attributes:
        models: that are watched.
        num_left_out: optimizers whose models are not watched, since there were too many.
    """

    def __init__(
        self,
        open_watch: Callable[[nn.Module, TrainedModel], Watch | None],
        destination: Destination,
        cycle: OptimizerCycle,
        entered: Entered,
        *,
        counts_backwards: bool,
    ) -> None:
        self.models: list[TrainedModel] = []
        self.num_left_out = 0
        self._open_watch = open_watch
        self._destination = destination
        self._cycle = cycle
        self._entered = entered
        self._counts_backwards = counts_backwards

    def has_space(self) -> bool:
        """Return whether one more may be watched; where not, count it as left out."""
        is_full = len(self.models) >= MOST_MODELS
        self.num_left_out += is_full
        return not is_full

    def add(self, found: nn.Module, *, is_certain: bool) -> TrainedModel | None:
        """Watch a model, unless it is watched already, or cannot be.

        Args:
            found: the model, maybe in wrappers.
            is_certain: whether an optimizer trains it.
        """
        root = unwrapped(found)
        if any(model.root() is root for model in self.models) or not self.has_space():
            return None
        model = TrainedModel(root, _variable_of((root, found)), is_certain=is_certain)
        model.listen(self._entered)  # Before the watch does: this closes the step before.
        if found is not root:
            model.listen_at(found)
        model.watch = self._open_watch(root, model)
        if model.watch is None:
            model.release()
            return None
        if self._counts_backwards or not is_certain:
            model.listen_to_backwards()
        self.models.append(model)
        self._cycle.models.append(model.state)
        return model

    def join(self, optimizer: OptimizerState, model: TrainedModel) -> None:
        """Note that an optimizer trains a model."""
        optimizer.models.append(model.state)
        model.state.optimizers.append(optimizer)
        if not self._counts_backwards:
            model.ignore_backwards()

    def begin(self, model: TrainedModel) -> None:
        """The training of a model goes on; at its first forward, or step, it begins."""
        if not model.has_trained:
            number = self._destination.begin(model)
            if number:
                assert model.watch is not None
                model.watch.step(number)
                model.first_step = number
        model.resume()

    def drop_uncertain(self) -> None:
        """Forget models that only ran, now that an optimizer has told which are trained."""
        # One that has ended a step by its backwards is trained by hand and stays.
        for model in [one for one in self.models if not one.is_certain and not one.num_steps]:
            self.models.remove(model)
            self._cycle.models.remove(model.state)
            for optimizer in model.state.optimizers:
                optimizer.models.remove(model.state)
            model.close()
            self._destination.drop(model)


def _variable_of(models: Sequence[nn.Module]) -> str:
    """Return the name by which the innermost running function that knows a model calls it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not str(frame.f_globals.get("__name__")).startswith(("torchtap.", "torch.")):
            # A copy: f_locals of a frame that runs may change while it is read.
            for name, value in list(frame.f_locals.items()):
                if name != "self" and any(value is model for model in models):
                    return name
        frame = frame.f_back
    return ""
