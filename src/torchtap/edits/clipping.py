"""Changes all selected gradients together, just before an optimizer uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from torchtap.core.errors import EditError
from torchtap.core.user_functions import name_of
from torchtap.edits.edit_counts import EditCounts
from torchtap.hooks.held_params import is_held
from torchtap.hooks.optimizer_hooks import has_closure, listen_to_optimizers
from torchtap.hooks.param_hooks import tapped_params
from torchtap.hooks.tap import SiteState, Tap

if TYPE_CHECKING:
    from torchtap.core.plan import Plan


class Clip(Protocol):
    """Interface of a clipping that turns norms into a factor."""

    p: float

    def factor(self, norms: Sequence[Tensor], scale: float | Tensor = 1.0) -> Tensor:
        """Return the factor to multiply all parts by."""


class Clipping:
    """Clips the norm of all selected parameters' gradients at the optimizer step.

    There they are accumulated, averaged over ranks, and free of a ``GradScaler``'s factor; only a
    fused optimizer gets them scaled, and is told the factor.

    Args:
        plan: what is selected (port ``param_grad``).
        clip: how.
        norm: the norm of one tensor.
    """

    why_silent = "no optimizer made a step with a gradient of it while the edit was on"

    def __init__(self, plan: Plan, clip: Clip, norm: Callable[[Tensor, float], Tensor]) -> None:
        self.plan = plan
        self.step = 0
        self.is_on = False
        self.num_entries = 0
        self.taps = {planned.path: Tap(planned.path, planned.filters) for planned in plan.taps}
        self.marks: dict[str, Tap | None] = {}
        counts = EditCounts()
        self.reached, self.fired, self._count = counts.reached, counts.fired, counts.add
        self.lost: dict[SiteState, str] = {}
        self._clip = clip
        self._norm = norm
        self._calls = 0
        self._running: list[int] = []
        self._handles: list[Any] = []

    def attach(self, modules: Mapping[str, nn.Module]) -> None:
        """Listen to all optimizers."""
        self._handles += listen_to_optimizers(self)

    def begin_step(self, step: int, *, is_on: bool) -> None:
        """Start ``step``."""
        self.step = step
        self.is_on = is_on
        self._calls = 0
        self._running.clear()

    def detach(self) -> None:
        """Remove the hooks."""
        self.is_on = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer is about to use the gradients: clip them."""
        if not self.is_on:
            return
        if id(optimizer) in self._running:
            self._running.clear()  # Its last step raised.
        is_outermost = not self._running
        self._running.append(id(optimizer))
        if not is_outermost:
            return  # Inside the step of another, which clipped already.
        own = self._chosen(optimizer)
        if not own:
            return
        if has_closure(args, kwargs):
            raise EditError(
                f"Edit {name_of(self._clip)!r}: {type(optimizer).__name__}.step was given a "
                f"closure, which computes the gradients only inside the step. Clip in the closure, "
                f"by torch.nn.utils.clip_grad_norm_."
            )
        # What is frozen gets no step, and so is no part of the norm, whichever hook ran first.
        free = [(state, param) for state, param in own if not is_held(param)]
        chosen = [(state, param.grad) for state, param in free if param.grad is not None]
        if chosen:
            self._clip_all(chosen, getattr(optimizer, "grad_scale", None))

    def after_step(self, optimizer: Optimizer) -> None:
        """The step returned, and with it all steps inside of it."""
        if id(optimizer) in self._running:
            del self._running[self._running.index(id(optimizer)) :]

    def _clip_all(self, chosen: Sequence[tuple[SiteState, Tensor]], scale: Tensor | None) -> None:
        with torch.no_grad():
            # Left on the device: the factor is computed there, and the training does not wait for
            # it.
            parts = [self._norm(gradient, self._clip.p) for _, gradient in chosen]
            device = parts[0].device
            factor = self._clip.factor(
                [part.to(device) for part in parts], 1.0 if scale is None else scale.to(device)
            )
            for state, gradient in chosen:
                # In place, as torch.nn.utils.clip_grad_norm_ does: with gradient_as_bucket_view
                # gradients are views of DDP's buckets, and another tensor would part them.
                gradient.mul_(factor.to(gradient.device, gradient.dtype))
                self._count(state, self._calls, True)
        self._calls += 1

    def _chosen(self, optimizer: Optimizer) -> list[tuple[SiteState, Tensor]]:
        """Return the selected parameters among those of an optimizer."""
        own = {id(param) for group in optimizer.param_groups for param in group["params"]}
        chosen: dict[int, tuple[SiteState, Tensor]] = {}
        for state, _, param in tapped_params(self.plan, self.taps, "param_grad"):
            if id(param) in own:
                chosen.setdefault(id(param), (state, param))  # A tied parameter counts once.
        return list(chosen.values())
