"""When a step of a training ends, told by what its models and optimizers do.

A step ends where the next one begins: at the first training forward of a model whose optimizers
have made their step. So late gradients and updates are in it. Forwards and backwards before that
belong together: an accumulation, the closures of one ``LBFGS`` step. Several optimizers make one
step where they take turns, as those of a GAN do: a model that ran and whose optimizer did not step
yet keeps the step open. Optimizers that follow each other (in stages, or one in the place of
another) take no turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

_PATIENCE = 16
"""Number of an optimizer's steps during which another one, whose model ran, is waited for. A
critic makes some 5 steps for one of its generator. An optimizer that is never used must not keep
a step open."""


class OptimizerState:
    """The state of one optimizer since the step began.

    Args:
        params: gives the ids of its parameters; none when it is no more.
        has_gradients: whether any of them has a gradient.

    Attributes:
        models: that it trains.
        has_stepped: whether it made a step, or skipped one.
        waits: how often others stepped again while it was waited for.
        num_steps: how many steps it ever made.
        takes_turns: whether others stepped between its last two steps, or before its first.
        is_passed: whether it had gradients before its first step, and another stepped without it.
        thread: in which it stepped last.
    """

    def __init__(
        self, params: Callable[[], set[int]], has_gradients: Callable[[], bool] = lambda: False
    ) -> None:
        self._params = params
        self._last_params: set[int] = set()
        self.has_gradients = has_gradients
        self.models: list[ModelState] = []
        self.has_stepped = self.takes_turns = self.is_passed = False
        self.waits = self.num_steps = 0
        self.num_others = 0
        self.thread: int | None = None

    @property
    def is_gone(self) -> bool:
        """Return whether the optimizer is gone."""
        return not self._params()

    def params(self) -> set[int]:
        """Return the ids of its parameters; where the optimizer is gone, those that it had."""
        self._last_params = self._params() or self._last_params
        return self._last_params

    def step(self) -> None:
        """It made a step."""
        self.params()
        self.has_stepped, self.waits, self.is_passed = True, 0, False
        self.takes_turns, self.num_others = self.num_others > 0, 0
        self.num_steps += 1
        self.thread = threading.get_ident()


class ModelState:
    """The state of one model since the step began.

    Attributes:
        optimizers: that train it.
        has_run: whether a training forward of it began.
        num_backwards: how many of its training forwards came after a backward.
        has_backward: whether a backward reached it since its last training forward.
        thread: in which its last forward ran.
    """

    def __init__(self) -> None:
        self.optimizers: list[OptimizerState] = []
        self.thread: int | None = None
        self.has_run = self.has_backward = False
        self.num_backwards = 0

    @property
    def is_complete(self) -> bool:
        """Return whether the running step has all that a step has."""
        if not self.optimizers:
            return self.has_backward or self.num_backwards > 0
        return any(optimizer.has_stepped for optimizer in self.optimizers)


class OptimizerCycle:
    """Follows a training and says when its steps end.

    Args:
        end: called when a step has ended, with the models that took part in it.
        backwards: end a step after so many backwards, whatever optimizers do.

    Attributes:
        models: that are trained.
        optimizers: that train them.
    """

    def __init__(
        self, end: Callable[[list[ModelState]], None], *, backwards: int | None = None
    ) -> None:
        self.models: list[ModelState] = []
        self.optimizers: list[OptimizerState] = []
        self._end = end
        self._backwards = backwards
        self._running: list[OptimizerState] = []

    def enter(self, model: ModelState, *, is_training: bool = True) -> None:
        """A forward of a model begins, in a training.

        Args:
            model: which.
            is_training: whether the forward is itself trained, and not of a frozen part.
        """
        model.thread = threading.get_ident()
        # Backwards between two forwards count once: a loss may be taken apart into several.
        model.num_backwards += model.has_backward
        model.has_backward = False
        if self.has_ended(model):
            self._close()
        model.has_run = model.has_run or is_training

    def has_ended(self, model: ModelState) -> bool:
        """Return whether a training forward of the model would begin another step."""
        if self._backwards is not None:
            return model.num_backwards >= self._backwards
        if not model.optimizers:
            return model.num_backwards > 0
        has_stepped = any(optimizer.has_stepped for optimizer in model.optimizers)
        return has_stepped and not any(self._awaited())

    def begin(self, optimizer: OptimizerState, *, has_closure: bool) -> None:
        """An optimizer begins its step.

        Args:
            optimizer: which.
            has_closure: whether it runs the forwards itself. Then the step before ends here, and
                not in the middle of the optimizer's.
        """
        if optimizer in self._running:  # Its last step raised.
            del self._running[self._running.index(optimizer) :]
        may_end = has_closure and self._backwards is None and not self._running
        if may_end and optimizer.has_stepped and not any(self._awaited()):
            self._close()
        self._running.append(optimizer)

    def finish(self, optimizer: OptimizerState) -> None:
        """An optimizer made its step.

        A model whose forwards are not heard of, since they run inside a compiled graph, has made
        its own with it: the step ends.
        """
        if optimizer in self._running:
            del self._running[self._running.index(optimizer) :]
        # One that stepped before in this step comes again, so others that wait have missed a turn.
        is_again = optimizer.has_stepped
        optimizer.step()
        for other in self.optimizers:
            other.num_others += other is not optimizer
        for other in list(self._awaited()):
            other.waits += is_again
            other.is_passed = not other.num_steps and other.has_gradients()
        is_heard = any(model.has_run for model in optimizer.models)
        may_end = optimizer.models and not is_heard and self._backwards is None
        if may_end and not self._running and not any(self._awaited(unheard=True)):
            self._close()

    def skip(self, model: ModelState) -> None:
        """Count a step that was left out, as ``GradScaler`` does, before a training forward.

        It is one of the model's own optimizers, or where these have stepped, of those that are
        waited for.
        """
        own = model.optimizers
        for one in own if not any(one.has_stepped for one in own) else list(self._awaited()):
            one.has_stepped = True

    def _awaited(self, *, unheard: bool = False) -> Iterator[OptimizerState]:
        """Yield the optimizers whose turn is still to come.

        Args:
            unheard: count a model as run, if none of its forwards was ever heard of.
        """
        stepped: list[set[int]] | None = None
        for optimizer in self.optimizers:
            if (
                optimizer.has_stepped
                or optimizer.waits > _PATIENCE
                or optimizer.is_passed
                or optimizer.is_gone
            ):
                continue
            # An optimizer of a stage that is over: no other stepped between its last two steps.
            if optimizer.num_steps and not optimizer.takes_turns:
                continue
            if not _is_of_this_thread(optimizer, *optimizer.models):
                continue
            if not unheard and not any(model.has_run for model in optimizer.models):
                continue
            # Made when it is first needed: most optimizers are passed over before that.
            if stepped is None:
                stepped = [other.params() for other in self.optimizers if other.has_stepped]
            if not any(
                optimizer.params() & others for others in stepped
            ):  # Else it is another choice.
                yield optimizer

    def _close(self) -> None:
        # Threads of one process may train models of their own, and each has its steps.
        mine = [model for model in self.models if _is_of_this_thread(model)]
        parts = [model for model in mine if model.has_run or model.is_complete]
        for model in mine:
            model.has_run = model.has_backward = False
            model.num_backwards = 0
        for optimizer in self.optimizers:
            if _is_of_this_thread(optimizer):
                optimizer.has_stepped = False
        self._end(parts)


def _is_of_this_thread(*states: OptimizerState | ModelState) -> bool:
    """Return whether none of them was last used in another thread, which trains something else."""
    return all(state.thread in (None, threading.get_ident()) for state in states)
