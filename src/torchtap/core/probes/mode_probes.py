"""Tries the private names of modes and transforms: dispatch, functorch, tracing, autocast."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from torchtap.core import torch_private

# Classes of torch whose methods have no annotations.
_Tensor: Any = Tensor
_DispatchMode: Any = TorchDispatchMode
_FunctionMode: Any = TorchFunctionMode


def _transform_running() -> bool:
    seen: list[bool] = []

    def function(x: Tensor) -> Tensor:
        seen.append(torch_private.transform_running() is not None)
        seen.append(torch_private.is_of_transform(x))
        return x.sum()

    torch.func.grad(function)(torch.ones(2))
    is_outside = torch_private.transform_running() is None
    return is_outside and seen == [True, True] and not torch_private.is_of_transform(torch.ones(1))


def _is_legacy_batched() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    y = x * 3
    seen: list[bool] = []
    y.register_hook(
        lambda gradient: seen.append(
            torch_private.is_legacy_batched(gradient) or torch_private.is_of_transform(gradient)
        )
    )
    torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)
    return seen == [True] and not torch_private.is_legacy_batched(x)


def _tracing_state() -> bool:
    seen: list[bool] = []

    def function(x: Tensor) -> Tensor:
        seen.append(torch_private.tracing_state() is not None)
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates torch.jit, release by release.
        torch.jit.trace(function, (torch.ones(2),), check_trace=False)  # type: ignore[no-untyped-call]
    return torch_private.tracing_state() is None and seen[:1] == [True]


def _num_dispatch_modes() -> bool:
    class Mode(_DispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return function(*args, **(kwargs or {}))

    before = torch_private.num_dispatch_modes()
    with Mode():
        return torch_private.num_dispatch_modes() == before + 1


class _Counting(_Tensor):  # type: ignore[misc]
    """A subclass that counts what it is asked."""

    num_asked = 0

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.num_asked += 1
        return super().__torch_function__(function, types, args, kwargs or {})


def _without_modes() -> bool:
    seen: list[Any] = []

    class Mode(_DispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        with torch_private.without_modes():
            torch.ones(2)
        before = len(seen)
        torch.ones(2)
    return before == 0 and len(seen) == 1


def _without_torch_function() -> bool:
    tensor = torch.ones(2).as_subclass(_Counting)
    before = _Counting.num_asked
    with torch_private.without_torch_function():
        torch.neg(tensor)
    return _Counting.num_asked == before


def _without_torch_functions() -> bool:
    seen: list[Any] = []

    class Mode(_FunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Mode():
        with torch_private.without_torch_functions():
            torch.neg(torch.ones(2))
        inside = list(seen)
        torch.neg(torch.ones(2))
    return not inside and torch.neg in seen


def _no_dispatch() -> bool:
    return torch.Tensor.__torch_dispatch__ is torch_private.NO_DISPATCH


def _set_grad_enabled() -> bool:
    with torch.enable_grad():
        torch_private.set_grad_enabled(False)
        return not torch.is_grad_enabled()


def _autocast() -> bool:
    with torch.autocast("cpu"):
        was_on = torch_private.is_any_autocast_enabled()
        with torch_private.without_autocast():
            is_off = not torch.is_autocast_enabled("cpu")
        return was_on and is_off and torch.is_autocast_enabled("cpu")


MODES: Mapping[str, Callable[[], bool]] = {
    "torch._C._functorch.peek_interpreter_stack": _transform_running,
    "torch._C._functorch.is_functorch_wrapped_tensor": _transform_running,
    "torch._C._functorch.is_legacy_batchedtensor": _is_legacy_batched,
    "torch._C._get_tracing_state": _tracing_state,
    "torch._C._len_torch_dispatch_stack": _num_dispatch_modes,
    "torch.utils._python_dispatch._disable_current_modes": _without_modes,
    "torch._C.DisableTorchFunctionSubclass": _without_torch_function,
    "torch._C.DisableTorchFunction": _without_torch_functions,
    "torch._C._disabled_torch_dispatch_impl": _no_dispatch,
    "torch._C._set_grad_enabled": _set_grad_enabled,
    "torch._C._is_any_autocast_enabled": _autocast,
    "torch._C._DisableAutocast": _autocast,
}
"""Name -> what tries it."""
