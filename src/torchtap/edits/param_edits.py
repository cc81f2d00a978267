"""Changes the gradients of parameters, before they are accumulated."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torchtap.core.distributed import gathered_parameters
from torchtap.core.tensors import obstacle
from torchtap.edits.gradient_edits import GradientEdits
from torchtap.hooks.module_hook import keep_dynamo_out
from torchtap.hooks.param_hooks import SWAPPED, ParamHooks, is_hooked, owned, tapped_params
from torchtap.hooks.tap import SiteState, Tap

if TYPE_CHECKING:
    from torchtap.core.plan import Plan


class ParamEdits:
    """The hooks of one edit on parameters.

    Args:
        plan: what is to be changed (port ``param_grad``).
        taps: path -> tap.
        gradients: change what arrives, and know which gradients were lost.
        wants_call: which backwards, by number; ``None`` for all.

    Attributes:
        are_edited: whether the plan has any.
        is_on: whether they are edited in the running step.
        hooks: that are on parameters now.
    """

    def __init__(
        self,
        plan: Plan,
        taps: Mapping[str, Tap],
        gradients: GradientEdits,
        wants_call: Callable[[int], bool] | None,
    ) -> None:
        self.is_on = False
        self._plan = plan
        self._taps = taps
        self._gradients = gradients
        self._wants_call = wants_call
        self.hooks = ParamHooks()
        self.are_edited = any("param_grad" in tap.filters for tap in plan.taps)

    def put_on(self) -> None:
        """Hook the parameters whose gradients are to be changed, also those that are new."""
        seen: set[int] = set()
        gathered = gathered_parameters()
        for state, module, param in tapped_params(self._plan, self._taps, "param_grad"):
            if obstacle(param) is not None:
                continue
            if id(param) in seen:
                state.reason = "another selected module owns the same parameter; edited there"
                continue
            seen.add(id(param))
            self._put_on(state, module, gathered.get(id(param), param))

    def _put_on(self, state: SiteState, module: nn.Module, param: Tensor) -> None:
        path, name = state.site.path, state.site.leaf
        if self.hooks.has(path, name, param):
            if self.hooks.was_swapped(path, name, param):
                self._gradients.lost[state] = SWAPPED
            return
        if not param.requires_grad or not param.is_leaf:
            state.reason = "it does not require grad" if param.is_leaf else "it is no leaf"
            return
        handles: list[RemovableHandle] = []
        hook = partial(self._change, state, weakref.ref(module), handles)
        # The hook needs its own handle, to ask whether the tensor is still the one that it was put
        # on: the list is filled when it is there.
        handles.append(param.register_hook(hook))  # type: ignore[no-untyped-call]
        self.hooks.add(path, name, param, handles[0])

    def _change(
        self,
        state: SiteState,
        module: Callable[[], nn.Module | None],
        handles: list[RemovableHandle],
        gradient: Tensor | None,
    ) -> Tensor | None:
        if gradient is None or not self.is_on:
            return None
        if not any(is_hooked(one, handles[0]) for one in owned(module(), state.site.leaf)):
            return None
        self._gradients.are_edited = True
        call = self._gradients.backwards.number()
        if self._wants_call is not None and not self._wants_call(call):
            return None
        state.expected += 1
        state.received += 1
        return self._gradients.change(state, gradient, self._gradients.step, call)

    def release(self) -> None:
        """Take every hook off."""
        self.is_on = False
        self.hooks.release(
            param for _, _, param in tapped_params(self._plan, self._taps, "param_grad")
        )


keep_dynamo_out(ParamEdits._change)
