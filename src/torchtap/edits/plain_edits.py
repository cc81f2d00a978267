"""Calls whose gradients are edited, taken natively where they are plain: ``editing.c``.

Nearly every such call is of a module that makes one tensor and returns it. Its hooks do in C what
``EditEngine.enter`` and ``EditEngine.leave`` do, with the same frames; whatever else is called goes
on to them before anything was noted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchtap.core.record import FORWARD
from torchtap.core.torch_private import (
    current_task,
    sequence_number,
    top_saved_hooks,
    tracing_state,
    transform_running,
)
from torchtap.hooks.module_hook import NativeHook, trace_hooks_behind
from torchtap.hooks.tap import EditGradHook, Tap
from torchtap.stats.kernels import native

if TYPE_CHECKING:
    from torchtap.edits.edit_engine import EditEngine, EditPostForward, EditPreForward
    from torchtap.hooks.call_follower import CallStack


def plain_hooks(
    enter: EditPreForward,
    leave: EditPostForward,
    running: CallStack[Any],
    blank_frame: Callable[[], object],
) -> tuple[NativeHook, NativeHook] | None:
    """Return native hooks in front of two of an edit; ``None`` where calls are not taken so.

    Args:
        enter: pre-hook of a module of which the gradient of what it returns is edited alone.
        leave: its forward hook.
        running: calls of the edit.
        blank_frame: makes one of them, with nothing in it.
    """
    if not native.takes_calls() or not hasattr(native.kernel(), "Editing"):
        return None  # Or the binary is an older one.
    _bind()
    editor: EditEngine = enter.owner
    tap: Tap = enter.tap
    gradients = editor.gradients
    editing = native.kernel().Editing(
        editor,
        tap,
        running,
        tap.call_numbers,
        tap.plain_gradient,
        gradients,
        gradients.views.inside,
        gradients.on_tensors,
        blank_frame,
    )
    kernel = native.kernel()
    return (
        NativeHook(kernel.enter_edited, editing, enter),
        NativeHook(kernel.leave_edited, editing, leave),
    )


@cache
def _bind() -> None:
    """Hand PyTorch's functions to the native code, once."""
    kernel = native.kernel()
    kernel.bind_edits(
        Tensor,
        current_task,
        torch.is_grad_enabled,
        top_saved_hooks,
        transform_running,
        tracing_state,
        sequence_number,
        EditGradHook,
        OrderedDict,
        FORWARD,
    )
    trace_hooks_behind(kernel.enter_edited, kernel.leave_edited)
