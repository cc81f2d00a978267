"""``tt.guard``: stays on during a training, and says where the first NaN or Inf was made."""

from __future__ import annotations

import gc
import json
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from torchtap.capture.training.scalers import Scalers
from torchtap.capture.watch import newest_numbers, note_of_step, watches_of
from torchtap.core.closable import Closable
from torchtap.core.doors import require
from torchtap.core.errors import CaptureError, InputError, NonFiniteError
from torchtap.core.modules import Where
from torchtap.core.record import Sink
from torchtap.core.torch_private import call_after_backward, current_task
from torchtap.diagnosis.origins.investigate import Evidence, investigate, when_clean
from torchtap.diagnosis.origins.kept_calls import Kept, KeptCall
from torchtap.diagnosis.origins.origin import Origin
from torchtap.diagnosis.origins.ranks import Ranks
from torchtap.diagnosis.origins.recorder import Recorder
from torchtap.diagnosis.origins.suspects import (
    OptimizedParams,
    first_bad_loss,
    gradients_are_finite,
)
from torchtap.hooks.module_hook import keep_dynamo_out
from torchtap.hooks.optimizer_hooks import has_closure, listen_to_optimizers
from torchtap.runs.step_notes import checked_ids

On = Literal["raise", "warn", "skip"] | Callable[[Origin], object]
_MOST_CALLS, _MOST_WAITING = 64, 16
"""Calls of one step that are kept, and those of them that have no gradient yet."""


@dataclass(slots=True)
class GuardedStep:
    """What is kept of one step.

    Attributes:
        number: from 0.
        calls: of the model.
        numbers: that were logged.
        ids: of its samples.
        has_stepped: whether an optimizer's step ended it.
        was_finite: whether the gradients were, when the optimizer began.
    """

    number: int
    calls: list[KeptCall] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    ids: list[int | str] = field(default_factory=list)
    has_stepped: bool = False
    was_finite: bool = False


class Guard(Closable):
    """The result of ``tt.guard``: a context manager and a handle, safe to close twice.

    Attributes:
        origin: of the first NaN or Inf; ``None`` while all is finite.
        origins: step -> origin, of the steps that were looked into.
        skipped: the steps that were left out.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        keep: int,
        on: On,
        recorder: Recorder | None,
    ) -> None:
        self.origin: Origin | None = None
        self.origins: dict[int, Origin] = {}
        self.skipped: list[int] = []
        self._model, self._optimizer, self._on = model, optimizer, on
        self._ranks = Ranks()
        self._kept = Kept(model, self._begin_call, self._arrived)
        self._own = list(model.parameters())
        self._optimized = OptimizedParams(frozenset(map(id, self._own)))
        self._steps = deque([GuardedStep(0)], maxlen=keep)
        self._kept.calls = self._steps[-1].calls
        self._scalers = Scalers()
        self._was_bad = False
        self._has_optimizer = optimizer is not None or any(map(self._optimized.of, _optimizers()))
        self._task = -1
        self._aside: list[tuple[Tensor, Tensor | None]] = []
        self._handles: list[Any] = []
        self._recorder = recorder

    def _attach(self) -> None:
        self._kept.attach()
        self._handles = listen_to_optimizers(self)
        if self._recorder is not None:
            self._recorder.listen(self._record)

    @property
    def recorded(self) -> Path | None:
        """Return the file of the flight recorder; ``None`` while it has not written."""
        return None if self._recorder is None else self._recorder.written

    @property
    def step(self) -> int:
        """Return the step that runs, from 0: optimizer steps of the model, with those left out."""
        return self._steps[-1].number

    def log(self, *, ids: Iterable[int | str] | Tensor | None = None, **numbers: Any) -> None:
        """Tell the guard of numbers of the running step, such as its loss, and of its samples.

        A loss that is not finite is looked into though the gradients are finite: any number with
        ``loss`` in its name. Where the model is watched too, ``w.log(loss=loss)`` does the same.

        A step begins with the first forward of the model after an optimizer's step, so ids are told
        between the forward and ``optimizer.step()``, and a loss there or after it.

        Args:
            ids: of the samples of the batch, in order: an origin names those that do it.
            numbers: a name and a number (or a tensor of one element) each.

        Example:
            >>> import torch, torchtap as tt
            >>> model = torch.nn.Linear(2, 2)
            >>> with tt.guard(model) as guard:
            ...     guard.log(loss=model(torch.ones(1, 2)).sum(), ids=["a"])
            >>> guard.origin is None
            True
        """
        self._refuse_closed()
        self._steps[-1].ids.extend(checked_ids(ids))
        self._steps[-1].numbers.update(
            {
                name: one.detach() if isinstance(one, Tensor) else one
                for name, one in numbers.items()
            }
        )

    # ------------------------------------------------------------------ calls

    def _begin_call(self) -> None:
        step = self._steps[-1]
        has_backward = any(call.gradients for call in step.calls)
        if step.has_stepped or (has_backward and self._ended_otherwise()):
            self._look_at_losses()
            self._next_step()
        waiting = [call for call in self._kept.calls if not call.gradients]
        for call in [*waiting[:-_MOST_WAITING], *self._kept.calls[:-_MOST_CALLS]]:
            call.release()
            self._kept.calls.remove(call)

    def _ended_otherwise(self) -> bool:
        """Return whether the step ended without an optimizer: a scaler skipped it, or none does."""
        if not self._scalers.were_updated():
            return not self._has_optimizer
        scales = [one.get_scale() for one in self._scalers.alive()]
        if min(scales, default=1.0) < 1.0:
            self._hit(self._steps[-1], Evidence(self._own))
        return True

    def _next_step(self) -> None:
        if self._recorder is not None:
            self._recorder.step(self._steps[-1].numbers, self._steps[-1].ids)
        if len(self._steps) == self._steps.maxlen:
            for call in self._steps[0].calls:
                call.release()
        self._steps.append(GuardedStep(self._steps[-1].number + 1))
        self._kept.calls = self._steps[-1].calls

    def _arrived(self) -> None:
        """A gradient arrived. Without an optimizer, the end of the backward is all there is."""
        task = current_task()
        if not self._has_optimizer and task != self._task:
            self._task = task
            call_after_backward(self._after_backward)

    def _after_backward(self) -> None:
        self._task = -1
        if self._has_optimizer or not self._is_open or gradients_are_finite(self._own):
            return
        self._scalers.note()
        if not self._scalers.alive():  # A scaler looks for the largest scale that is finite.
            self._hit(self._steps[-1], Evidence(self._own))

    # ------------------------------------------------------------------ optimizers

    def before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """A step of an optimizer begins."""
        self._give_back()
        params = self._params_of(optimizer)
        if not params:
            return None
        self._has_optimizer = True
        if has_closure(args, kwargs):
            return self._with_checked_closure(params, args, kwargs)
        step = self._steps[-1]
        if self._check(step, params) and self._on_skip(step):
            self._aside = [(one, one.grad) for one in params]
            for one in params:
                one.grad = None
        step.has_stepped = True
        return None

    def after_step(self, optimizer: Optimizer) -> None:
        """A step of an optimizer ended."""
        self._give_back()

    def _give_back(self) -> None:
        while self._aside:
            param, gradient = self._aside.pop()
            param.grad = gradient

    def _params_of(self, optimizer: Optimizer) -> list[Tensor]:
        if self._optimizer is not None and optimizer is not self._optimizer:
            return []
        if getattr(optimizer, "found_inf", None) is not None:
            return []  # A scaler has looked, and the optimizer leaves the step out itself.
        return self._optimized.of(optimizer)

    def _with_checked_closure(
        self, params: list[Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """An optimizer that computes gradients itself: they are looked at after each evaluation."""
        step = self._steps[-1]

        def checked(closure: Callable[..., Any]) -> Callable[..., Any]:
            def run(*inner: Any, **named: Any) -> Any:
                for call in step.calls:
                    call.release()
                step.calls.clear()
                step.has_stepped = False
                loss = closure(*inner, **named)
                step.has_stepped = True
                if isinstance(loss, Tensor | float):
                    self.log(loss=loss)
                self._check(step, params)
                return loss

            return run

        others = [checked(one) if callable(one) else one for one in args[1:]]
        named = {key: checked(one) if callable(one) else one for key, one in kwargs.items()}
        step.has_stepped = True
        return (*args[:1], *others), named

    # ------------------------------------------------------------------ verdicts

    def _check(self, step: GuardedStep, params: list[Tensor]) -> bool:
        """Look at the numbers of a step; returns whether any rank has some that is not finite."""
        loss = self._bad_loss(step)
        is_bad = bool(loss) or not gradients_are_finite(params)
        is_bad = self._ranks.any(is_bad)
        if is_bad:
            before = self._steps[-2].was_finite if len(self._steps) > 1 else False
            self._hit(step, Evidence(params, loss, was_finite=before, ids=step.ids))
        step.was_finite = not is_bad
        self._was_bad = is_bad
        return is_bad

    def _look_at_losses(self) -> None:
        """Look at losses that were logged after the optimizer's step."""
        step = self._steps[-1]
        if self._ranks.are_many or not step.was_finite:
            return  # One rank alone must not stop; the next optimizer step tells.
        loss = self._bad_loss(step)
        if loss:
            step.was_finite = False
            self._hit(step, Evidence(self._own, loss, is_updated=True, ids=step.ids))

    def _bad_loss(self, step: GuardedStep) -> str:
        numbers = dict(step.numbers)
        for watch in watches_of(self._model):
            numbers.update(newest_numbers(watch))
        return first_bad_loss(numbers) or ""

    def _hit(self, step: GuardedStep, evidence: Evidence) -> None:
        if self._was_bad and (self._on != "skip" or step.number in self.origins):
            return  # It is known, or it follows from a step before about which nothing was done.
        self._was_bad = True
        with self._paused():
            origin = investigate(self._model, self._kept, step.calls, evidence)
            found = self._ranks.verdict(origin)
            if found is None:
                found = when_clean(self._model, self._kept, step.calls, evidence)
        self.origins[step.number] = found
        self.origin = self.origin or found
        for watch in watches_of(self._model):
            note_of_step(watch, {"origin": json.dumps(found.as_dict())})
        self._record(f"step {step.number} is not finite", found)
        self._act(found, step)

    def _record(self, why: str, origin: Origin | None = None) -> None:
        if self._recorder is None:
            return
        step = self._steps[-1]
        random = step.calls[0].random if step.calls else ()
        entry = None if origin is None else origin.as_dict()
        self._recorder.write(why, step.numbers, step.ids, random, entry)

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Inside, neither this guard nor a watch of the model takes note of calls."""
        self._kept.detach()
        with ExitStack() as pauses:
            for watch in watches_of(self._model):
                pauses.enter_context(watch.pause())
            try:
                yield
            finally:
                self._kept.attach()

    def _act(self, origin: Origin, step: GuardedStep) -> None:
        text = f"step {step.number}: {origin.text}"
        if self._on == "raise":
            raise NonFiniteError(text, origin)
        if self._on == "warn":
            warnings.warn(f"torchtap: {text}", stacklevel=2)
        elif callable(self._on):
            self._on(origin)

    def _on_skip(self, step: GuardedStep) -> bool:
        if self._on != "skip":
            return False
        self.skipped.append(step.number)
        for watch in watches_of(self._model):
            note_of_step(watch, {"skipped": True})
        return True

    # ------------------------------------------------------------------ off

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None and self._is_open:
            self._record(f"{kind.__name__}: {error}")
        super().__exit__(kind, error, traceback)

    def _closed(self) -> CaptureError:
        return CaptureError("This guard is closed; call tt.guard again to go on.")

    def _finish(self, *, raising: bool) -> None:
        try:
            if raising:
                self._look_at_losses()
        finally:
            self._give_back()
            for handle in self._handles:
                handle.remove()
            for step in self._steps:
                for call in step.calls:
                    call.release()
            self._kept.detach()
            if self._recorder is not None:
                self._recorder.close()
            self._steps = deque([GuardedStep(self.step)])


def _optimizers() -> Iterator[Optimizer]:
    return (one for one in gc.get_objects() if issubclass(type(one), Optimizer))


def guard(
    model: nn.Module,
    *,
    optimizer: Optimizer | None = None,
    keep: int = 2,
    on: On = "raise",
    record: str | Path | None = None,
    where: Where | None = None,
    ring: Sink | None = None,
) -> Guard:
    """Stay on during a training, and say where the first NaN or Inf was made.

    Before each step of an optimizer one number is looked at, the norm of the gradients, and the
    loss if it is logged. Nothing is kept but references: what the model was called with, random
    states, modes, and the gradients that arrived at its outputs. If something is not finite, the
    calls are replayed eagerly and operation by operation with the weights, which are still those
    of that step, and the operation is found that made it. Infinite gradients by which a
    ``GradScaler`` looks for its scale are normal.

    Faults outside of the model (the loss, clipping, the optimizer) are noticed, and not named by
    operation: ``tt.locate`` does, with the step as a function.

    Args:
        model: any module, also compiled, or wrapped for data parallelism: then all ranks guard.
        optimizer: whose steps count; by default any that has a parameter of the model.
        keep: how many steps are kept, the running one among them.
        on: ``"raise"`` a ``NonFiniteError`` before the optimizer's step; ``"warn"`` once and go on;
            ``"skip"``: leave the optimizer's step out, on all ranks; or call a function with the
            origin and go on.
        record: file of a flight recorder, which keeps the last steps in memory and writes them as
            a run when something is not finite, when an exception leaves the ``with`` block, or at
            SIGTERM. Several ranks write a file each, ``crash.rank0.safetensors``.
        where: what the recorder keeps, patterns as of ``tt.watch``; by default the batch, and all
            outputs with their gradients.
        ring: the sink that holds the last steps; by default ``tt.Memory(max_steps=4)``. For
            statistics alone, ``tt.Stats(keep=8)``.

    Returns:
        a handle, also a context manager. ``guard.origin`` is the first origin.

    Raises:
        InputError: an argument is none of these.
        NonFiniteError: from ``optimizer.step()``, with ``on="raise"``.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with tt.guard(model, on="warn") as guard:
        ...     model(torch.ones(4, 2)).sum().backward()
        ...     optimizer.step()
        >>> guard.origin is None
        True
    """
    require("tt.guard", model)
    if not (isinstance(keep, int) and keep > 0):
        raise InputError(f"tt.guard got keep={keep!r}; expected a whole number above 0.")
    if not (callable(on) or on in ("raise", "warn", "skip")):
        raise InputError(
            f"tt.guard got on={on!r}; expected 'raise', 'warn', 'skip' or a function of the origin."
        )
    kind: type = type(optimizer)
    if optimizer is not None and not issubclass(kind, Optimizer):
        raise InputError(
            f"tt.guard got a {kind.__name__} as optimizer; expected a torch.optim.Optimizer."
        )
    recorder = None if record is None else Recorder(model, record, where, ring)
    made = Guard(model, optimizer, keep, on, recorder)
    made._attach()
    return made


keep_dynamo_out(Guard.before_step, Guard.after_step)
