"""When a step of a training ends, told by what its models and optimizers do.

A step ends where the next one begins: at the first training forward of a model whose optimizers
have made their step. So late gradients and updates are in it. Forwards and backwards before that
belong together: an accumulation, the closures of one ``LBFGS`` step. Several optimizers make one
step where they take turns, as those of a GAN do: a model that ran and whose optimizer did not step
yet keeps the step open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

_PATIENCE = 16
"""How often an optimizer may step while another one, whose model ran, is waited for. A critic makes
some 5 steps for one of its generator. An optimizer that is never used must not keep a step open."""


class OptimizerState:
    """What one optimizer did since the step began.

    Args:
        params: gives the ids of its parameters.

    Attributes:
        models: that it trains.
        has_stepped: whether it made a step, or skipped one.
        waits: how often others stepped again while it was waited for.
    """

    def __init__(self, params: Callable[[], set[int]]) -> None:
        self.params = params
        self.models: list[ModelState] = []
        self.has_stepped = False
        self.waits = 0


class ModelState:
    """What one model did since the step began.

    Attributes:
        optimizers: that train it.
        has_run: whether a training forward of it began.
        num_backwards: how many of its training forwards came after a backward.
        has_backward: whether a backward reached it since its last training forward.
    """

    def __init__(self) -> None:
        self.optimizers: list[OptimizerState] = []
        self.has_run = self.has_backward = False
        self.num_backwards = 0

    @property
    def is_complete(self) -> bool:
        """Whether the running step has all that a step has."""
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
        model.num_backwards += model.has_backward
        model.has_backward = False
        if self.has_ended(model):
            self._close()
        model.has_run = model.has_run or is_training

    def has_ended(self, model: ModelState) -> bool:
        """Whether a training forward of the model would begin another step."""
        if self._backwards is not None:
            return model.num_backwards >= self._backwards
        if not model.optimizers:
            return model.num_backwards > 0
        has_stepped = any(one.has_stepped for one in model.optimizers)
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
        is_again, optimizer.has_stepped, optimizer.waits = optimizer.has_stepped, True, 0
        for other in self._awaited() if is_again else ():
            other.waits += 1
        is_heard = any(model.has_run for model in optimizer.models)
        may_end = optimizer.models and not is_heard and self._backwards is None
        if may_end and not self._running and not any(self._awaited(unheard=True)):
            self._close()

    def skip(self, model: ModelState) -> None:
        """A step was left out, as ``GradScaler`` does, before a training forward of the model.

        Of the model's own optimizers, or where these have stepped, of those that are waited for.
        """
        own = model.optimizers
        for one in own if not any(one.has_stepped for one in own) else list(self._awaited()):
            one.has_stepped = True

    def _awaited(self, *, unheard: bool = False) -> Iterator[OptimizerState]:
        """The optimizers whose turn is still to come.

        Args:
            unheard: count a model as run, if none of its forwards was ever heard of.
        """
        stepped: list[set[int]] | None = None
        for one in self.optimizers:
            if one.has_stepped or one.waits > _PATIENCE:
                continue
            if not unheard and not any(model.has_run for model in one.models):
                continue
            if stepped is None:
                stepped = [other.params() for other in self.optimizers if other.has_stepped]
            if not any(one.params() & others for others in stepped):  # Else it is another choice.
                yield one

    def _close(self) -> None:
        parts = [model for model in self.models if model.has_run or model.is_complete]
        for model in self.models:
            model.has_run = model.has_backward = False
            model.num_backwards = 0
        for optimizer in self.optimizers:
            optimizer.has_stepped = False
        self._end(parts)
