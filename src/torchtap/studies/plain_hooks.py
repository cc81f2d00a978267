"""Plain hooks that see, and may replace, what modules take and return."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from torchtap.hooks.hidden_handle import HiddenHandle


@contextlib.contextmanager
def interposed(
    modules: Mapping[str, nn.Module],
    enter: Callable[[str, tuple[Any, ...], dict[str, Any]], tuple[Any, Any] | None],
    leave: Callable[[str, Any], Any],
    *,
    fused: Container[str] = (),
) -> Iterator[None]:
    """While open, ``enter`` and ``leave`` see, and may replace, what modules take and return.

    The plain way to look, without any of the engine's care; ``verify`` measures the engine
    against it. The modules in ``fused`` are seen on leaving only and through a global hook, which
    does not switch their kernel off.
    """
    paths = {id(module): path for path, module in modules.items()}

    def after(module: nn.Module, _: Any, output: Any) -> Any:
        path = paths.get(id(module))
        return leave(path, output) if path is not None and path in fused else None

    handles: list[Any] = [register_module_forward_hook(after)] if fused else []
    for path, module in modules.items():
        if path not in fused and not isinstance(module, torch.jit.ScriptModule):
            before = partial(_call_enter, enter, path)
            handles.append(
                HiddenHandle.of(module.register_forward_pre_hook(before, with_kwargs=True))
            )
            leaving = partial(_call_leave, leave, path)
            handles.append(HiddenHandle.of(module.register_forward_hook(leaving)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _call_enter(
    enter: Any, path: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return enter(path, args, kwargs)


def _call_leave(leave: Any, path: str, _: nn.Module, __: Any, output: Any) -> Any:
    return leave(path, output)
