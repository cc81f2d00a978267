"""Hooks on the gradients of parameters, also of those that come and go."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from torchtap.core.local import sharded_parameters
from torchtap.hooks.spots import SiteState, Tap

if TYPE_CHECKING:
    from torchtap.core.plan import Plan

Ref = Callable[[], Tensor | None]


class ParamHooks:
    """The hooks on all tensors that a module has had under the name of a parameter.

    A parameter may be replaced while its graph still waits for backward, and come back:
    ``torch.func.functional_call`` lends a module other tensors for one call. So a hook stays as
    long as its tensor, and counts when the module owns that tensor as the gradient arrives.
    """

    def __init__(self) -> None:
        self._hooked: dict[tuple[str, str], list[tuple[Ref, Any]]] = {}

    def __bool__(self) -> bool:
        return bool(self._hooked)

    def has(self, path: str, name: str, param: Tensor) -> bool:
        """Whether the tensor is hooked under this name."""
        hooked = self._hooked.get((path, name))
        if not hooked:
            return False
        return hooked[-1][0]() is param or any(ref() is param for ref, _ in hooked)

    def add(self, path: str, name: str, param: Tensor, handle: Any) -> None:
        """Remember the hook of a tensor, and forget those of tensors that are gone."""
        old = self._hooked.get((path, name), [])
        alive = [(ref, handle) for ref, handle in old if ref() is not None]
        self._hooked[path, name] = [*alive, (weakref.ref(param), handle)]

    def release(self) -> None:
        """Take all of them off."""
        for hooked in self._hooked.values():
            for _, handle in hooked:
                handle.remove()
        self._hooked.clear()


class SeenParams:
    """The parameters of some modules, as they were looked at last.

    Args:
        modules: ``None`` where they must be looked at again in any case.
    """

    def __init__(self, modules: Iterable[nn.Module] | None) -> None:
        self._is_known = modules is not None
        self._ids = [(weakref.ref(module), _ids(module)) for module in modules or ()]
        held = [param for module in modules or () for param in _params(module)]
        # An id is that of the same tensor only as long as none of them is gone.
        self._gone: list[Any] = []
        self._alive = [weakref.ref(param, self._gone.append) for param in held]
        self._frozen = [weakref.ref(param) for param in held if not param.requires_grad]

    def is_unchanged(self) -> bool:
        """Whether the modules hold the same tensors, and none that was frozen is trained now."""
        if not self._is_known or self._gone:
            return False
        for ref, ids in self._ids:
            module = ref()
            if module is None or _ids(module) != ids:
                return False
        return not any(param.requires_grad for ref in self._frozen if (param := ref()) is not None)


def _params(module: nn.Module) -> list[Tensor]:
    return [param for param in module._parameters.values() if param is not None]


def _ids(module: nn.Module) -> list[int]:
    return [*map(id, module._parameters.values())]


def tapped_params(
    plan: Plan, taps: Mapping[str, Tap], port: str
) -> Iterator[tuple[SiteState, nn.Module, Tensor]]:
    """The selected parameters of the modules of a plan, each with its site and its owner.

    A parameter that several modules own comes once for each.
    """
    for planned in plan.taps:
        module, tap = planned.module(), taps[planned.path]
        if module is None or port not in tap.filters:
            continue
        for name, param in module._parameters.items():
            spot = None if param is None else tap.spot(port, name)
            if spot is not None and param is not None:
                yield spot, module, param


def owns(module: nn.Module | None, name: str, param: Tensor | None) -> bool:
    """Whether a tensor is the module's parameter of that name now, or FSDP2's shard of it."""
    if module is None or param is None:
        return False
    held = module._parameters.get(name)
    return held is param or sharded_parameters().get(id(held)) is param
