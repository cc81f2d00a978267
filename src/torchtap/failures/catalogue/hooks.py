"""Hooks that return what they may not, or cannot be where they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.core.source_files import shown_file
from torchtap.core.user_functions import code_of
from torchtap.failures.failure import Details, Failure
from torchtap.failures.situation_row import Situation, SituationRow, first_of
from torchtap.failures.traceback_frame import line_of

_FULL = ("_backward_hooks", "_backward_pre_hooks")
_READS = "Return None from a hook that only reads."


def _on_tensors(failure: Failure, found: re.Match[str]) -> Details:
    """The hooks that stand on tensors of the running functions, and where they are written."""
    wanted = found.groupdict().get("hook")
    frames = (one for one in failure.frames if not one.is_torch)
    held = [pair for frame in frames for pair in frame.own_names.items()]
    for _, model in failure.names.models:
        for one in model.parameters():
            state = failure.names.state(one)
            held.append(("" if state is None else state.name, one))
    places = {
        id(hook): f"on {name}: {_place(hook)}"
        for name, value in held
        for hook in _hooks_on(value)
        if not wanted or getattr(hook, "__name__", "") == wanted
    }
    return tuple(("hook", text) for text in list(places.values())[:4])


def _hooks_on(value: object) -> list[object]:
    if not isinstance(value, Tensor):
        return []
    tables = (value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None))
    return [hook for table in tables if table for hook in table.values()]


def _place(hook: object) -> str:
    """Return where a function is defined: ``<lambda> at train.py:9``."""
    name = getattr(hook, "__name__", type(hook).__name__)
    code = code_of(hook)
    return (
        name if code is None else f"{name} at {shown_file(code.co_filename)}:{code.co_firstlineno}"
    )


def _on_module(*tables: str) -> Callable[[Failure, re.Match[str]], Details]:
    """Return a function that gives the hooks in tables of the running module."""
    return lambda failure, found: _held(failure.module, tables)


def _held(module: nn.Module | None, tables: tuple[str, ...]) -> Details:
    hooks = [one for table in tables for one in getattr(module, table, {}).values()]
    return tuple(("hook", _place(one)) for one in hooks[:4])


def _of_nodes(failure: Failure, found: re.Match[str]) -> Details:
    """Lines of the running functions that register hooks of nodes."""
    lines = [
        line_of(node, frame.file)
        for frame in failure.frames
        if frame.is_user
        for node in frame.calls_of("register_hook", "register_prehook")
    ]
    return tuple(("hook", text) for text in lines[:4])


def _full(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The module of a full backward hook that was running."""
    running = [
        getattr(frame.owner, "module", None)
        for frame in reversed(failure.frames)
        if frame.file.endswith("utils/hooks.py")
    ]
    modules = [one for one in running if isinstance(one, nn.Module)]
    if not modules:
        every = (one for _, one in failure.names.modules())
        modules = [one for one in every if one._backward_hooks or one._backward_pre_hooks]
        modules = modules if len(modules) == 1 else []
    module = next(iter(modules), None)
    return {"where": failure.names.module(module), "details": _held(module, _FULL)}


def _size(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    full = _full(failure, found) if found["hook"] == "hook" else {}  # PyTorch's, for a module.
    is_full = bool(full.get("where"))
    return {**full, "is_full": True} if is_full else {"is_full": False}


def _no_grad(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    tensors = [one for one in failure.tensors if not one.value.requires_grad]
    if not tensors:
        return {"name": "the tensor", "x": "x", "details": failure.details()}
    name = failure.name_of(tensors[0])
    return {"name": name, "x": name, "details": failure.details(tensors[0])}


_TAKES = {
    "_forward_hooks": "(module, args, output)",
    "_forward_pre_hooks": "(module, args)",
    "_backward_hooks": "(module, grad_input, grad_output)",
    "_backward_pre_hooks": "(module, grad_output)",
}
"""Table of a module -> the arguments that its hooks are called with."""


def hook_called(failure: Failure) -> str:
    """The arguments of the hook that PyTorch was calling; empty if it was calling none."""
    last = failure.frames[-1]
    node = last.expression
    called = last.value_of(node.func) if isinstance(node, ast.Call) else None
    if not last.is_torch or isinstance(failure.error, RuntimeError) or not callable(called):
        return ""
    for _, module in failure.names.modules():
        for table, takes in _TAKES.items():
            if any(one is called for one in getattr(module, table, {}).values()):
                is_more = isinstance(node, ast.Call) and len(node.args) > takes.count(",") + 1
                return takes.replace("args", "args, kwargs") if is_more else takes
    return ""


def _taken(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    last = failure.frames[-1]
    node = last.expression
    called = last.value_of(node.func) if isinstance(node, ast.Call) else None
    return {"takes": hook_called(failure), "details": (("hook", _place(called)),)}


SITUATIONS: dict[str, Situation] = {
    "hook changed the size": first_of(
        SituationRow(
            "A full backward hook of a module returned a gradient of another shape.",
            "Return a tuple of gradients of the shapes of grad_input, or None to keep them.",
            when="is_full",
        ),
        SituationRow(
            "The tensor hook {hook!r} returned a gradient of another shape than it was given.",
            "Return a tensor of the same shape, or None to keep the gradient: a hook that only "
            "reads must not return what it computed.",
            details=_on_tensors,
        ),
        facts=_size,
    ),
    "hook changed the type": SituationRow(
        "The tensor hook {hook!r} returned a {given}, where the gradient is a {wanted}.",
        "Return the dtype and the device of the gradient: result.to(grad).",
        details=_on_tensors,
    ),
    "hook returned no tensor": SituationRow(
        "A hook on a tensor returned {given}, where a tensor or None is expected.",
        "Return None, or nothing, from a hook that only reads.",
        details=_on_tensors,
    ),
    "hook returned no tuple": SituationRow(
        "A hook of a node of the graph returned {given}, where a tuple of all its gradients, or "
        "None, is expected.",
        "Return a tuple, also of one: return (gradient,).",
        _READS,
        details=_of_nodes,
    ),
    "number of grad_input": SituationRow(
        "A full backward hook returned {given} values for {which}, which has {wanted}.",
        "Return a tuple of {wanted}, in the order of {which}; a tensor alone counts by its rows.",
        _READS,
        facts=_full,
    ),
    "forward pre-hook": SituationRow(
        "A forward pre-hook of {module} with with_kwargs=True returned something other than None "
        "or (args, kwargs).",
        "Return both: return (new_input,), kwargs.",
        _READS,
        details=_on_module("_forward_pre_hooks"),
    ),
    "two kinds of backward hooks": SituationRow(
        "{module} has a backward hook of the old kind, and cannot take a full one beside it.",
        "Use register_full_backward_hook in place of register_backward_hook, everywhere.",
        details=_on_module(*_FULL),
    ),
    "post-accumulate hook": SituationRow(
        "A post-accumulate hook of a parameter returned a value; it may return nothing.",
        "Change the gradient in place: param.grad.clamp_(-1, 1), and return nothing.",
        details=_on_tensors,
    ),
    "arguments of a hook": SituationRow(
        "PyTorch calls a hook of this kind with {takes}, and {hook} {what}.",
        "Take these arguments: def hook{takes}: ...",
        facts=_taken,
    ),
    "hook without grad": SituationRow(
        "{name} does not require grad, so no gradient will ever come to a hook or be retained on "
        "it.",
        "Call {x_it}.requires_grad_() before, if it is an input.",
        "Guard it: if {x_it}.requires_grad: ..., where forwards run under no_grad too.",
        facts=_no_grad,
    ),
}
