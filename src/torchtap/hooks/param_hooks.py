"""Hooks on the gradients of parameters, also of those that come and go."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torchtap.core.distributed import sharded_parameters
from torchtap.core.torch_private import current_task
from torchtap.hooks.tap import SiteState, Tap

if TYPE_CHECKING:
    from torchtap.core.plan import Plan


SWAPPED = (
    "torch.utils.swap_tensors (by which Module.to may convert) gave the parameter another tensor's "
    "memory, and its hooks to that tensor: close this and attach it again"
)
"""Why a hook receives nothing. Put on again it would take the place of the hooks of the other
tensor, which may be the user's, and of all hooks of this one when the tensors are swapped back."""


class ParamHooks:
    """The hooks on all tensors that a module has had under the name of a parameter.

    A parameter may be replaced while its graph still waits for backward, and come back:
    ``torch.func.functional_call`` lends a module other tensors for one call. So a hook stays as
    long as its tensor, and counts when the module owns that tensor as the gradient arrives.

    No tensor is referred to, not even weakly: ``torch.utils.swap_tensors``, by which ``Module.to``
    converts tensor subclasses, refuses tensors that have weak references.
    """

    def __init__(self) -> None:
        # With the address at which autograd has the hook.
        self._hooked: dict[tuple[str, str], list[tuple[RemovableHandle, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._hooked)

    def has(self, path: str, name: str, param: Tensor) -> bool:
        """Return whether the tensor is hooked under this name."""
        return any(is_hooked(param, handle) for handle, _ in self._hooked.get((path, name), ()))

    def was_swapped(self, path: str, name: str, param: Tensor) -> bool:
        """Return whether autograd has the hook at another tensor now, see :data:`SWAPPED`."""
        hooked = self._hooked.get((path, name), ())
        return all(
            address != param._cdata for handle, address in hooked if is_hooked(param, handle)
        )

    def add(self, path: str, name: str, param: Tensor, handle: RemovableHandle) -> None:
        """Remember the hook of a tensor."""
        # The address too: torch.utils.swap_tensors exchanges what two Python objects stand for, and
        # their hooks follow the memory.
        self._hooked.setdefault((path, name), []).append((handle, param._cdata))

    def forget_gone(self) -> list[RemovableHandle]:
        """Forget the hooks of tensors that were freed; returns the others."""
        for key, hooked in self._hooked.items():
            self._hooked[key] = [one for one in hooked if one[0].hooks_dict_ref() is not None]
        return [handle for hooked in self._hooked.values() for handle, _ in hooked]

    def release(self, params: Iterable[Tensor]) -> None:
        """Take all of them off.

        Args:
            params: those that are there now; their tables of hooks go too where nothing is left.
        """
        for hooked in self._hooked.values():
            for handle, _ in hooked:
                handle.remove()
        self._hooked.clear()
        if current_task() != -1:
            return  # Autograd may be going through a table now.
        for param in params:
            if not param._post_accumulate_grad_hooks and not param._backward_hooks:
                _drop_tables(param)


def _drop_tables(param: Tensor) -> None:
    """Let a tensor have no table of hooks, as before the first was put on it.

    ``torch.utils.swap_tensors`` leaves the tables at the tensor, while autograd has them at the
    other one: what is put into these tables later is never called.
    """
    if param._post_accumulate_grad_hooks is not None:
        param._post_accumulate_grad_hooks = None  # type: ignore[assignment]
    if param._backward_hooks is not None:
        param._backward_hooks = None


def is_hooked(tensor: Tensor, handle: RemovableHandle) -> bool:
    """Return whether a handle's hook is on this tensor: it has the table that the handle knows."""
    table = handle.hooks_dict_ref()
    return table is not None and (
        table is tensor._post_accumulate_grad_hooks or table is tensor._backward_hooks
    )


class SeenParams:
    """The parameters of some modules, as they were looked at last.

    Args:
        modules: ``None`` where they must be looked at again in any case.
        handles: of the hooks on the parameters.
    """

    def __init__(
        self, modules: Iterable[nn.Module] | None, handles: Iterable[RemovableHandle] = ()
    ) -> None:
        self._is_known = modules is not None
        self._modules = [weakref.ref(module) for module in modules or ()]
        self._states = self._states_now()
        # An address is that of the same tensor only as long as none of them is gone.
        self._tables = [handle.hooks_dict_ref for handle in handles]

    def are_unchanged(self) -> bool:
        """Return whether parameters and their ``requires_grad`` are as they were, none swapped."""
        if not self._is_known or None in [table() for table in self._tables]:
            return False
        return self._states_now() == self._states

    def _states_now(self) -> list[tuple[int, bool]]:
        modules = [module for ref in self._modules if (module := ref()) is not None]
        return [
            # The address of the C++ tensor: swap_tensors exchanges it between two Python objects.
            (param._cdata, param.requires_grad)
            for module in modules
            for param in module._parameters.values()
            if param is not None
        ]


def tapped_params(
    plan: Plan, taps: Mapping[str, Tap], port: str
) -> Iterator[tuple[SiteState, nn.Module, Tensor]]:
    """Yield the selected parameters of the modules of a plan, each with its site and its owner.

    A parameter that several modules own comes once for each.
    """
    for planned in plan.taps:
        module, tap = planned.module(), taps[planned.path]
        if module is None or port not in tap.filters:
            continue
        for name, param in module._parameters.items():
            state = None if param is None else tap.state(port, name)
            if state is not None and param is not None:
                yield state, module, param


def owned(module: nn.Module | None, name: str) -> tuple[Tensor, ...]:
    """Return the module's parameter of that name now, and FSDP2's shard of it."""
    held = None if module is None else module._parameters.get(name)
    if held is None:
        return ()
    shard = sharded_parameters().get(id(held))
    return (held,) if shard is None else (held, shard)


def owns(module: nn.Module | None, name: str, param: Tensor) -> bool:
    """Return whether a tensor is one of those that a module owns under this name."""
    if module is not None and module._parameters.get(name) is param:
        return True
    return any(one is param for one in owned(module, name))
