"""Calls whose gradients are edited, taken natively where they are plain: ``editing.c``.

Nearly every such call is of a module that makes one tensor and returns it. Its hooks do in C what
``EditEngine.enter`` and ``EditEngine.leave`` do, with the same frames; whatever else is called goes
on to them before anything was noted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchtap.capture.plain_calls import kernel_with
from torchtap.core.record import FORWARD
from torchtap.core.shared_state import once
from torchtap.core.torch_private import (
    current_task,
    sequence_number,
    top_saved_hooks,
    tracing_state,
    transform_running,
)
from torchtap.hooks.module_hook import NativeHook, trace_hooks_behind
from torchtap.hooks.tap import EditGradHook, Tap

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
    kernel = kernel_with("Editing")
    if kernel is None:
        return None
    _bind()
    editor: EditEngine = enter.owner
    tap: Tap = enter.tap
    gradients = editor.gradients
    editing = kernel.Editing(
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
    return (
        NativeHook(kernel.enter_edited, editing, enter),
        NativeHook(kernel.leave_edited, editing, leave),
    )


@once
def _bind() -> None:
    """Hand PyTorch's functions to the native code, once."""
    kernel = kernel_with("Editing")
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
