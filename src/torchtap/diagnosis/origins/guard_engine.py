"""Listens to the calls of a model and to its optimizers, and looks at the numbers of each step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from torchtap.capture.training.scalers import Scalers
from torchtap.capture.unobserved import forget_observer, note_observer
from torchtap.core.torch_private import call_after_backward, current_task
from torchtap.diagnosis.origins.bad_losses import bad_loss, bad_root
from torchtap.diagnosis.origins.guarded_steps import GuardedSteps
from torchtap.diagnosis.origins.investigate import Evidence
from torchtap.diagnosis.origins.nonfinite_steps import Hits
from torchtap.diagnosis.origins.recorder import Recorder
from torchtap.diagnosis.origins.suspects import (
    OptimizedParams,
    gradients_are_finite,
)
from torchtap.diagnosis.origins.verdict_of_ranks import Ranks
from torchtap.hooks.module_hook import keep_dynamo_out
from torchtap.hooks.optimizer_hooks import has_closure, listen_to_optimizers


class GuardEngine:
    """Ends the steps of a training, and hands those on that are not finite.

    Args:
        model: any module.
        optimizer: whose steps count; ``None`` for any that has a parameter of the model.
        keep: how many steps are kept.
        hits: takes the steps that are not finite.
        recorder: is told of steps, if there is one.
        ranks: that are guarded together.

    Attributes:
        steps: that are kept.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        keep: int,
        *,
        hits: Hits,
        recorder: Recorder | None,
        ranks: Ranks,
    ) -> None:
        self.steps = GuardedSteps(model, keep, begun=self._begin_call, arrived=self._arrived)
        self._model = model
        self._hits, self._recorder, self._ranks = hits, recorder, ranks
        self._own = list(model.parameters())
        self._optimized = OptimizedParams(frozenset(map(id, self._own)), optimizer)
        self._scalers = Scalers()
        self._scalers.begin()
        self._has_optimizer = optimizer is not None or any(map(self._optimized.of, _optimizers()))
        self._task = -1
        self._aside = _GradientsAside()
        self._handles: list[Any] = []

    @property
    def model(self) -> nn.Module:
        """Return the model, wrappers looked through."""
        return self.steps.kept.modules[""]

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Take note of no call and no optimizer inside: the model is run for something else."""
        self._unlisten()
        self.steps.kept.detach()
        try:
            yield
        finally:
            self.attach()

    def attach(self) -> None:
        """Begin to listen."""
        self.steps.kept.attach()
        self._handles = listen_to_optimizers(self)
        note_observer(self)

    def detach(self) -> None:
        """Take everything off."""
        self._aside.give_back()
        self._unlisten()
        self.steps.close()

    def _unlisten(self) -> None:
        forget_observer(self)
        while self._handles:
            self._handles.pop().remove()

    # ------------------------------------------------------------------ calls

    def _begin_call(self) -> None:
        step = self.steps.running
        if step.has_stepped or (step.has_backward and self._ended_otherwise()):
            self._end_step()
        self.steps.trim()

    def _end_step(self) -> None:
        self.look_at_losses()
        if self._recorder is not None:
            self._recorder.step(self.steps.running.numbers, self.steps.running.ids)
        self.steps.begin()
        if self._scalers.are_known:
            self._scalers.note()

    def _ended_otherwise(self) -> bool:
        """Return whether the step ended without an optimizer: a scaler skipped it, or none does."""
        updated = self._scalers.updated()
        if not updated:
            return not self._has_optimizer
        # One that belongs to another model may be among them: then all have to agree.
        scales = [one.get_scale() for one in updated if self._scalers.is_counting_anew(one)]
        if max(scales, default=1.0) < 1.0:
            self._hit(Evidence(self._own))
        return True

    def _arrived(self) -> None:
        """A gradient arrived. Without an optimizer, the end of the backward is all there is."""
        task = current_task()
        if not (self._has_optimizer or self._ranks.are_many) and task != self._task:
            self._task = task
            call_after_backward(self._after_backward)

    def _after_backward(self) -> None:
        self._task = -1
        if self._has_optimizer or not self._handles or gradients_are_finite(self._own):
            return
        self._scalers.note()
        if not self._scalers.of_training():  # A scaler looks for the largest scale that is finite.
            self._hit(Evidence(self._own))

    # ------------------------------------------------------------------ optimizers

    def before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """A step of an optimizer begins."""
        self._aside.give_back()
        params = self._optimized.of(optimizer)
        if params:
            self._scalers.learn(optimizer)
        # Where a scaler has looked, the optimizer leaves the step out itself.
        if not params or getattr(optimizer, "found_inf", None) is not None:
            return None
        self._has_optimizer = True
        if has_closure(args, kwargs):
            if self.steps.running.has_stepped:  # Its forwards run inside of it.
                self._end_step()
            self._note_optimizer(optimizer)
            others = [self._checked(arg, params) if callable(arg) else arg for arg in args[1:]]
            named = {k: self._checked(v, params) if callable(v) else v for k, v in kwargs.items()}
            return (*args[:1], *others), named
        self._note_optimizer(optimizer)
        step = self.steps.running
        if self._check(params) and self._hits.is_left_out(step):
            self._aside.put(params)
        step.has_stepped = True
        return None

    def _note_optimizer(self, optimizer: Optimizer) -> None:
        known = self.steps.knows_optimizers
        others = () if known else [id(one) for one in _optimizers() if self._optimized.of(one)]
        self.steps.note_optimizer(id(optimizer), others)

    def after_step(self, optimizer: Optimizer) -> None:
        """A step of an optimizer ended."""
        self._aside.give_back()

    def _checked(self, closure: Callable[..., Any], params: list[Tensor]) -> Callable[..., Any]:
        """A closure by which an optimizer computes gradients, which are looked at each time."""
        step = self.steps.running

        def run(*args: Any, **kwargs: Any) -> Any:
            step.forget_calls()
            step.has_stepped = False
            loss = closure(*args, **kwargs)
            step.has_stepped = True
            if isinstance(loss, Tensor | float):
                step.log({"loss": loss})
            self._check(params)
            return loss

        return run

    # ------------------------------------------------------------------ numbers

    def _check(self, params: list[Tensor]) -> bool:
        """Look at the running step; returns whether any rank has something not finite in it."""
        step = self.steps.running
        is_finite = gradients_are_finite(params)
        # Where gradients are not finite, they tell more.
        loss = bad_loss(self._model, step, self._scalers, num_back=0)
        if is_finite and not loss:
            loss = bad_root(step, may_be_scaled=self._scalers.are_stepping)
        is_bad = self._ranks.any(bool(loss) or not is_finite)
        if is_bad:
            self._hit(Evidence(params, loss))
        step.was_finite = not is_bad
        self._hits.was_bad = is_bad
        return is_bad

    def look_at_losses(self) -> None:
        """Look at losses logged after the optimizer's step, or of a step that a scaler left out.

        One that a scaler has multiplied may be Inf while it looks for its scale; NaN is never its,
        nor an Inf in float32 where the scale is too small to make one.
        """
        step = self.steps.running
        is_left_out = not step.has_stepped and self._has_optimizer
        if self._ranks.are_many or not (step.was_finite or is_left_out):
            return  # One rank alone must not stop; the next optimizer step tells.
        known = self._model, step, self._scalers
        loss = bad_loss(*known, num_back=1, is_scaled=is_left_out)
        if loss:
            step.was_finite = False
            self._hit(Evidence(self._own, loss, is_updated=not is_left_out))

    def _hit(self, evidence: Evidence) -> None:
        step, steps = self.steps.running, self.steps
        known = replace(evidence, was_finite=steps.was_finite_before, ids=step.ids)
        known = replace(known, num_dropped=step.num_dropped)
        self._hits.hit(steps.kept, step, known)


def _optimizers() -> Iterator[Optimizer]:
    return (one for one in gc.get_objects() if issubclass(type(one), Optimizer))


keep_dynamo_out(GuardEngine.before_step, GuardEngine.after_step)


class _GradientsAside:
    """Takes gradients away while an optimizer makes a step that is to change nothing."""

    def __init__(self) -> None:
        self._held: list[tuple[Tensor, Tensor | None]] = []

    def put(self, params: Iterable[Tensor]) -> None:
        """Take the gradients of parameters away."""
        for param in params:
            self._held.append((param, param.grad))
            param.grad = None

    def give_back(self) -> None:
        """Give the very tensors back."""
        while self._held:
            param, gradient = self._held.pop()
            param.grad = gradient
