"""Keeps parameters and buffers from moving."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchtap.errors import EditError
from torchtap.hooks.callbacks import EditCallback
from torchtap.hooks.spots import Tap
from torchtap.site import Site

if TYPE_CHECKING:
    from torchtap.plan import Plan


class Frozen:
    """Holds what a plan selects (ports ``param`` and ``buffer``) still, until it is detached.

    Parameters: no gradient is asked for, and an optimizer that makes a step does not see one, so
    that neither momentum nor decay moves them. Buffers: what a forward writes is put back.

    Args:
        plan: what is selected.
        keep_grad: leave ``requires_grad`` as it is; only the optimizer is kept off.
    """

    def __init__(self, plan: Plan, *, keep_grad: bool) -> None:
        self.plan = plan
        self.params: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        self._keep_grad = keep_grad
        self._required: list[tuple[Tensor, bool]] = []
        self._away: dict[int, list[tuple[Tensor, Tensor | None, int]]] = {}
        self._handles: list[Any] = []

    def attach(self) -> None:
        """Freeze."""
        for planned, module in self._owners():
            tap = Tap(planned.path, planned.filters)
            for name, param in module._parameters.items():
                if param is not None and tap.spot("param", name) is not None:
                    self.params[str(Site(planned.path, "param", name))] = param
            names = [
                name
                for name, buffer in module._buffers.items()
                if buffer is not None and tap.spot("buffer", name) is not None
            ]
            if names:
                self._hold_buffers(module, tap, names)
        self._required = [(param, param.requires_grad) for param in self.params.values()]
        if not self._keep_grad:
            for held, _ in self._required:
                held.requires_grad_(False)
        self._guard_optimizers()

    def detach(self) -> None:
        """Give everything back."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for param, required in self._required:
            param.requires_grad_(required)
        self._required.clear()

    # ------------------------------------------------------------------ optimizers

    def _guard_optimizers(self) -> None:
        me = weakref.ref(self)

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            frozen = me()
            if frozen is not None:
                frozen._hide(optimizer)

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            frozen = me()
            if frozen is not None:
                frozen._bring_back(optimizer)

        self._handles += [
            register_optimizer_step_pre_hook(before),
            register_optimizer_step_post_hook(after),
        ]

    def _hide(self, optimizer: Optimizer) -> None:
        """No gradient, no step: optimizers pass over what has none."""
        held = {id(param) for param in self.params.values()}
        away = []
        for group in optimizer.param_groups:
            for param in group["params"]:
                if id(param) in held:
                    away.append((param, param.grad, param._version))
                    param.grad = None
        self._away[id(optimizer)] = away

    def _bring_back(self, optimizer: Optimizer) -> None:
        moved = []
        for param, gradient, version in self._away.pop(id(optimizer), ()):
            if param.grad is None:  # A closure may have computed a new one.
                param.grad = gradient
            if param._version != version:
                moved.append(param)
        if moved:
            names = [text for text, param in self.params.items() if any(param is m for m in moved)]
            raise EditError(
                f"tt.freeze: {type(optimizer).__name__} moved {', '.join(names[:3])} although it "
                f"has no gradient. Leave it out of this optimizer's parameters."
            )

    # ------------------------------------------------------------------ buffers

    def _hold_buffers(self, module: nn.Module, tap: Tap, names: list[str]) -> None:
        kept: dict[str, Tensor] = {}
        for name in names:
            buffer = module._buffers[name]
            assert buffer is not None
            kept[name] = buffer.detach().clone()
            self.buffers[str(Site(tap.path, "buffer", name))] = buffer
        hook = _PutBack(self, tap, kept)
        self._handles.append(module.register_forward_hook(hook, always_call=True))

    def _owners(self) -> Iterator[tuple[Any, nn.Module]]:
        for planned in self.plan.taps:
            module = planned.module()
            if module is not None:
                yield planned, module


class _PutBack(EditCallback):
    """Forward hook: buffers are again what they were when they were frozen."""

    __slots__ = ("_kept",)

    def __init__(self, frozen: Frozen, tap: Tap, kept: dict[str, Tensor]) -> None:
        super().__init__(frozen, tap)
        self._kept = kept

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        with torch.no_grad():
            for name, value in self._kept.items():
                buffer = module._buffers.get(name)
                if buffer is not None and not torch.equal(buffer, value):
                    buffer.copy_(value)
