"""The port ``update``: the true change of each parameter over a step of its optimizer.

Found by the hooks that ``torch.optim`` offers for all optimizers, so schedules, momentum, decay
and clipping are in it, and no learning rate has to be known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from torchtap.core.distributed import local, sharded_parameters
from torchtap.core.record import FORWARD, UNVERSIONED, Record
from torchtap.core.tensors import obstacle
from torchtap.hooks.optimizer_hooks import listen_to_optimizers
from torchtap.hooks.param_hooks import tapped_params
from torchtap.hooks.taps import SiteState, Tap

if TYPE_CHECKING:
    from torchtap.core.plan import Plan


class Updates:
    """Hears of optimizer steps on behalf of one engine.

    Args:
        plan: what is wanted.
        taps: path -> tap.
        emit: takes records.
        stepping: called when an optimizer is about to change a parameter.
    """

    def __init__(
        self,
        plan: Plan,
        taps: Mapping[str, Tap],
        emit: Callable[[Record], None],
        stepping: Callable[[], None],
    ) -> None:
        self.step = 0
        self.recording = False
        self._plan = plan
        self._taps = taps
        self._emit = emit
        self._stepping = stepping
        self._calls: Counter[SiteState] = Counter()
        # Optimizers inside their step, the outermost first, with their parameters before it.
        self._running: list[tuple[int, dict[int, Tensor]]] = []
        self._skipped: dict[SiteState, list[int]] = {}
        self._has_stepped = False

    @property
    def is_wanted(self) -> bool:
        """Whether any tap asks for updates."""
        return any("update" in tap.filters for tap in self._taps.values())

    def attach(self) -> list[Any]:
        """Listen to all optimizers; returns the handles."""
        return [*listen_to_optimizers(self)] if self.is_wanted else []

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer is about to make a step, maybe inside the step of another."""
        for depth, (running, _) in enumerate(self._running):
            if running == id(optimizer):
                del self._running[depth:]  # Its last step raised.
                break
        known = {key for _, before in self._running for key in before}
        wanted = self._states() if self.recording else {}
        params = [param for group in optimizer.param_groups for param in group["params"]]
        before = {
            id(param): local(param)[0].detach().clone()
            for param in params
            if id(param) in wanted and id(param) not in known
        }
        if before:
            self._stepping()
        self._running.append((id(optimizer), before))

    def after_step(self, optimizer: Optimizer) -> None:
        """The optimizer made its step: compare its parameters with what they were before."""
        while self._running:
            running, before = self._running.pop()
            if running == id(optimizer):
                break
        else:
            return
        self._has_stepped = True
        params, states = self._params(), self._states()
        for key, old in before.items():
            if key not in params:
                continue
            try:
                with torch.no_grad():
                    own, labels = local(params[key])
                    change = own.detach() - old
            except RuntimeError as error:  # It must not stop the training.
                for state in states[key]:
                    state.expected += 1
                    state.reason = f"torch cannot subtract it: {str(error).splitlines()[0]}"
                    self._calls[state] += 1
                continue
            for state in states[key]:
                call = self._calls[state]
                self._calls[state] += 1
                state.seen = True
                # A meter knows nothing of labels.
                if not labels and state.meter(change, self.step):
                    continue
                row = (state.site, self.step, call, FORWARD, -1, labels, change, UNVERSIONED)
                self._emit(Record(*row))

    def end_step(self, *, has_run: bool) -> None:
        """The step ends; where the model ran and no optimizer did, that is said.

        ``GradScaler`` does not call an optimizer whose gradients are not finite.
        """
        if self.recording and has_run and self.is_wanted:
            for state, param in self._tapped():
                if not self._calls[state]:
                    self._note_skipped(state, param)
        self._calls.clear()
        self._running.clear()
        self._has_stepped = False

    def _note_skipped(self, state: SiteState, param: Tensor) -> None:
        skipped = self._skipped.setdefault(state, [])
        skipped.append(self.step)
        state.expected += 1
        if not param.requires_grad:
            state.reason = "it does not require grad, and no optimizer made a step with it"
            return
        shown = ", ".join(map(str, skipped[:6])) + (" and more" if len(skipped) > 6 else "")
        state.reason = f"no optimizer made a step with it in step {shown}"
        if param.grad is not None and not _is_finite(param.grad):
            state.reason += ": its gradient was not finite, and GradScaler skips such steps"
        elif self._has_stepped:
            state.reason += ": those that made one do not hold it"
        else:
            state.reason += " (GradScaler skips steps whose gradients are not finite)"

    def _params(self) -> dict[int, Tensor]:
        return {id(param): param for _, param in self._tapped()}

    def _states(self) -> dict[int, list[SiteState]]:
        """Of a parameter that several modules own, all."""
        found: dict[int, list[SiteState]] = {}
        for state, param in self._tapped():
            found.setdefault(id(param), []).append(state)
        return found

    def _tapped(self) -> list[tuple[SiteState, Tensor]]:
        shards = sharded_parameters()
        return [
            (state, shards.get(id(param), param))
            for state, _, param in tapped_params(self._plan, self._taps, "update")
            if obstacle(param) is None
        ]


def _is_finite(gradient: Tensor) -> bool:
    gradient, _ = local(gradient)
    values = gradient.coalesce().values() if gradient.layout is torch.sparse_coo else gradient
    try:
        return bool(values.isfinite().all())
    except RuntimeError:  # Of a kind that torch cannot ask.
        return True
