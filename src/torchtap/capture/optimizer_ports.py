"""The ports ``step_grad`` and ``update``: what each optimizer's step used, and what it changed.

Taken by the hooks that ``torch.optim`` offers for all optimizers. A gradient before the step is
what is left after reduction over ranks, unscaling and clipping; an update contains schedule,
momentum and decay, and no learning rate has to be known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchtap.core.distributed import local, sharded_parameters
from torchtap.core.inference_mode import normal_copy
from torchtap.core.ports import OPTIMIZER_PORTS
from torchtap.core.record import FORWARD, UNVERSIONED, Record
from torchtap.core.tensors import obstacle
from torchtap.hooks.optimizer_hooks import has_closure, listen_to_optimizers
from torchtap.hooks.param_hooks import tapped_params
from torchtap.hooks.tap import SiteState, Tap

if TYPE_CHECKING:
    from torchtap.capture.training.scalers import Scalers
    from torchtap.core.plan import Plan

COMPUTED_INSIDE = "computed inside the optimizer's step, by its closure"
UNSCALED = "divided by the grad_scale of the optimizer"
_CLOSED_BEFORE = "the watch was closed in the middle of that step, before any made one"
_SKIPPED = "GradScaler skipped the step, since {} gradient was not finite"


class _Step(NamedTuple):
    """One step of one optimizer that is running.

    Attributes:
        optimizer: its id.
        params: id -> each parameter that no optimizer around this one holds.
        before: id -> value before the step, of those whose update is wanted.
        computes_gradients: whether a closure computes the gradients inside the step.
    """

    optimizer: int
    params: Mapping[int, Tensor]
    before: Mapping[int, Tensor]
    computes_gradients: bool


class OptimizerPorts:
    """Takes what the steps of all optimizers use and change, for one engine.

    Args:
        plan: what is wanted.
        taps: path -> tap.
        emit: takes records.
        stepping: called when an optimizer is about to change a parameter, with whether gradients
            have come already (``is_late``).
        borrows: whether records hold gradients themselves, because they are read at once.

    Attributes:
        is_wanted: whether any tap asks for one of these ports.
    """

    def __init__(
        self,
        plan: Plan,
        taps: Mapping[str, Tap],
        emit: Callable[[Record], None],
        stepping: Callable[..., None],
        *,
        borrows: bool,
    ) -> None:
        self.step = 0
        self.recording = False
        self._plan = plan
        self._taps = taps
        self._emit = emit
        self._stepping = stepping
        self._borrows = borrows
        self._wanted = [port for port in OPTIMIZER_PORTS if port in plan.ports]
        self.is_wanted = bool(self._wanted)
        self._calls: Counter[SiteState] = Counter()
        # Optimizers inside their step, the outermost first.
        self._running: list[_Step] = []
        self._skipped: dict[SiteState, dict[str, list[int]]] = {}
        self._has_stepped = self._was_paused = self._are_named = False
        self._were_scaled_away: bool | None = None

    @cached_property
    def _scalers(self) -> Scalers:
        from torchtap.capture.training.scalers import Scalers

        return Scalers()

    def attach(self) -> list[Any]:
        """Listen to all optimizers; returns the handles."""
        return [*listen_to_optimizers(self)] if self.is_wanted else []

    def name_sites(self) -> None:
        """Note, once the model runs, at which sites a step is waited for."""
        if not self._are_named:
            self._are_named = all(len(self._tapped(port)) for port in self._wanted)

    # ------------------------------------------------------------------ around a step

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer is about to make a step, maybe inside the step of another."""
        # PyTorch runs no post-hook of a step that raised.
        for depth, running in enumerate(self._running):
            if running.optimizer == id(optimizer):
                del self._running[depth:]  # Its last step raised.
                break
        if _is_skipped(optimizer):
            self._were_scaled_away = True
            self._running.append(_Step(id(optimizer), {}, {}, False))
            return
        self._was_paused |= not self.recording
        # An optimizer that wraps another one holds its parameters too: the outer one takes them.
        known = {key for running in self._running for key in running.params}
        held = (param for group in optimizer.param_groups for param in group["params"])
        params = {id(param): param for param in held if id(param) not in known}
        updated = self._states("update") if self.recording else {}
        # Copied, since a step writes in place, and without a graph; of a sharded parameter what
        # this rank holds, since gathering it would take all ranks.
        before = {
            key: local(param)[0].detach().clone() for key, param in params.items() if key in updated
        }
        computes = has_closure(args, kwargs)
        if self.recording:
            if before:
                # A step with a closure runs the model itself: parameters are taken by that forward,
                # in time.
                self._stepping(is_late=not computes)
            if not computes:
                self._take_gradients(optimizer, params)
        self._running.append(_Step(id(optimizer), params, before, computes))

    def after_step(self, optimizer: Optimizer) -> None:
        """The optimizer made its step: compare its parameters with what they were before."""
        # Optimizers inside of one that ended have raised, so none of them told of its end.
        while self._running:
            done = self._running.pop()
            if done.optimizer == id(optimizer):
                break
        else:
            return
        self._has_stepped |= not _is_skipped(optimizer)
        if done.computes_gradients and self.recording:
            self._take_gradients(optimizer, done.params, COMPUTED_INSIDE)
        states = self._states("update")
        for key, old in done.before.items():
            if key in states:
                self._take_update(states[key], done.params[key], old)

    def _take_gradients(
        self, optimizer: Optimizer, params: Mapping[int, Tensor], *labels: str
    ) -> None:
        # A fused optimizer divides by the scale of GradScaler itself, inside its kernel.
        scale = getattr(optimizer, "grad_scale", None)
        for key, states in self._states("step_grad").items():
            param = params.get(key)
            if param is None or param.grad is None:
                continue
            with torch.no_grad():
                gradient, said = local(param.grad)
                if scale is not None:
                    gradient, said = gradient / scale.to(gradient.device), (*said, UNSCALED)
            for state in states:
                self._take(state, gradient, (*said, *labels), is_own=scale is not None)

    def _take_update(self, states: list[SiteState], param: Tensor, old: Tensor) -> None:
        try:
            with torch.no_grad():
                own, labels = local(param)
                # In the dtype of the parameter: where an update is lost to rounding it is 0 here,
                # as it was there.
                change = own.detach() - old
        except RuntimeError as error:  # It must not stop the training.
            for state in states:
                state.expected += 1
                state.reason = f"torch cannot subtract it: {str(error).splitlines()[0]}"
                self._calls[state] += 1
            return
        for state in states:
            self._take(state, change, labels, is_own=True)

    def _take(
        self, state: SiteState, value: Tensor, labels: tuple[str, ...], *, is_own: bool
    ) -> None:
        """Hand on one value; one that is our own needs no copy."""
        call = self._calls[state]
        self._calls[state] += 1
        state.seen = True
        if not labels and state.meter(value, self.step):  # A meter knows nothing of labels.
            return
        kept = value if is_own or self._borrows else normal_copy(value)
        self._emit(Record(state.site, self.step, call, FORWARD, -1, labels, kept, UNVERSIONED))

    # ------------------------------------------------------------------ the end of a step

    def end_step(self, *, has_run: bool, is_last: bool = False) -> None:
        """The step ends; where the model ran and no optimizer did, that is said.

        Args:
            has_run: whether the model did.
            is_last: whether the watch is closed, and no other step begins.
        """
        if self.recording and has_run:
            for port in self._wanted:
                for state, param in self._tapped(port):
                    if not self._calls[state]:
                        self._note_skipped(state, param, is_last=is_last)
        self._calls.clear()
        self._running.clear()
        self._has_stepped = self._was_paused = False
        self._were_scaled_away = None
        if self.is_wanted and self._scalers.are_known:
            self._scalers.note()

    def _note_skipped(self, state: SiteState, param: Tensor, *, is_last: bool) -> None:
        why = self._why_skipped(state, param, is_last=is_last)
        skipped = self._skipped.setdefault(state, {})
        skipped.setdefault(why, []).append(self.step)
        state.expected += 1
        if not param.requires_grad:
            state.reason = "it does not require grad, and no optimizer made a step with it"
            return
        parts = [f"in step {_first(steps)}: {reason}" for reason, steps in skipped.items()]
        state.reason = f"no optimizer made a step with it {'; '.join(parts)}"

    def _why_skipped(self, state: SiteState, param: Tensor, *, is_last: bool) -> str:
        is_finite = param.grad is None or _is_finite(param.grad)
        if self._was_paused:
            return "the watch was paused when one made it"
        if not (self._has_stepped and is_finite) and self._has_a_scaler_skipped():
            return _SKIPPED.format("some" if is_finite else "its")
        if not self._has_stepped:
            return _CLOSED_BEFORE if is_last else "none made any before the next step began"
        if state.site.port == "step_grad" and param.grad is None:
            return "it has no gradient"
        return "those that made one do not hold it"

    def _has_a_scaler_skipped(self) -> bool:
        if self._were_scaled_away is None:  # Asked once a step: a device is waited for.
            self._were_scaled_away = self._scalers.have_skipped()
        return self._were_scaled_away

    def _states(self, port: str) -> dict[int, list[SiteState]]:
        """Id of a parameter -> its states; several, where several modules own it."""
        states: dict[int, list[SiteState]] = {}
        for state, param in self._tapped(port):
            states.setdefault(id(param), []).append(state)
        return states

    def _tapped(self, port: str) -> list[tuple[SiteState, Tensor]]:
        if port not in self._wanted:
            return []
        shards = sharded_parameters()
        return [
            (state, shards.get(id(param), param))
            for state, _, param in tapped_params(self._plan, self._taps, port)
            if obstacle(param) is None
        ]


def _first(steps: list[int]) -> str:
    return ", ".join(map(str, steps[:6])) + (" and more" if len(steps) > 6 else "")


def _is_skipped(optimizer: Optimizer) -> bool:
    """Return whether a fused optimizer will skip the step, since ``GradScaler`` found Inf or NaN.

    On other devices than the CPU asking would wait for the device.
    """
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, Tensor) and found.is_cpu and bool(found)


def _is_finite(gradient: Tensor) -> bool:
    gradient, _ = local(gradient)
    values = gradient.coalesce().values() if gradient.layout is torch.sparse_coo else gradient
    try:
        return bool(values.isfinite().all())
    except RuntimeError:  # Of a kind that torch cannot ask.
        return True
