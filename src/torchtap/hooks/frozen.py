"""Keeps parameters and buffers from moving."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

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


class _Away(NamedTuple):
    """A gradient that is out of sight while an optimizer makes its step.

    Attributes:
        value: of the parameter before, where its version does not tell.
    """

    param: Tensor
    gradient: Tensor | None
    version: int
    value: Tensor | None

    @property
    def has_moved(self) -> bool:
        """Whether the optimizer changed the parameter all the same."""
        if self.param._version == self.version:
            return False
        return self.value is None or not torch.equal(self.param, self.value)


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
        self._required: dict[int, tuple[Tensor, bool]] = {}
        self._away: dict[int, list[_Away]] = {}
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
        if not self._keep_grad:
            for held in self.params.values():
                self._required.setdefault(id(held), (held, held.requires_grad))
                held.requires_grad_(False)
        self._guard_optimizers()
        _open.add(self)

    def detach(self) -> None:
        """Give everything back."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for key in list(self._away):  # Of optimizers whose step raised.
            self._give_back(self._away.pop(key))
        _open.discard(self)
        for key, (param, required) in self._required.items():
            others = [other for other in _open if key in other._required]
            if others:  # Still held; who closes last gives it back.
                others[0]._required[key] = param, required or others[0]._required[key][1]
            else:
                param.requires_grad_(required)
        self._required.clear()

    # ------------------------------------------------------------------ optimizers

    def _guard_optimizers(self) -> None:
        me = weakref.ref(self)

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            frozen = me()
            if frozen is not None:
                # The optimizer itself stands first among the arguments of its hooks.
                has_closure = any(callable(one) for one in (*args[1:], *kwargs.values()))
                frozen._hide(optimizer, has_closure=has_closure)

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            frozen = me()
            if frozen is not None:
                frozen._bring_back(optimizer)

        self._handles += [
            register_optimizer_step_pre_hook(before),
            register_optimizer_step_post_hook(after),
        ]

    def _hide(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        """No gradient, no step: optimizers pass over what has none."""
        self._give_back(self._away.pop(id(optimizer), ()))  # Its last step raised.
        held = {id(param) for param in self.params.values()}
        away = []
        for group in optimizer.param_groups:
            for param in group["params"]:
                if id(param) in held:
                    # Those that work with closures (LBFGS) write into all parameters, but what is
                    # written need not be new.
                    value = param.detach().clone() if has_closure else None
                    away.append(_Away(param, param.grad, param._version, value))
                    param.grad = None
        self._away[id(optimizer)] = away

    def _bring_back(self, optimizer: Optimizer) -> None:
        away = self._away.pop(id(optimizer), ())
        self._give_back(away)
        moved = {id(one.param) for one in away if one.has_moved}
        if moved:
            names = [text for text, param in self.params.items() if id(param) in moved]
            raise EditError(
                f"tt.freeze: {type(optimizer).__name__} moved {', '.join(names[:3])} although it "
                f"has no gradient. Leave it out of this optimizer's parameters."
            )

    @staticmethod
    def _give_back(away: Iterable[_Away]) -> None:
        for one in away:
            if one.param.grad is None:  # A closure may have computed a new one.
                one.param.grad = one.gradient

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


# Several may hold one parameter.
_open: weakref.WeakSet[Frozen] = weakref.WeakSet()


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
