"""Hooks that return what they may not, or cannot be where they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torch import Tensor, nn

from torchtap.core.user_functions import code_of
from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.frame import shown_file
from torchtap.failures.source import grouped, written

Details = tuple[tuple[str, str], ...]


def _functions(failure: Failure, wanted: str = "") -> Details:
    """The hooks that stand on tensors of the running functions, and where they are written."""
    held = [
        (name, value)
        for frame in failure.frames
        if not frame.is_torch
        for name, value in frame.own_names.items()
    ]
    for _, model in failure.names.models:
        held += [(failure.names.tensor(one) or "", one) for one in model.parameters()]
    found = {}
    for name, value in held:
        for hook in _hooks_on(value):
            if not wanted or getattr(hook, "__name__", "") == wanted:
                found[id(hook)] = f"on {name}: {_place(hook)}"
    return tuple(("hook", text) for text in list(found.values())[:4])


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


def _of_module(module: nn.Module | None, *tables: str) -> Details:
    """The hooks in tables of a module."""
    hooks = [one for table in tables for one in getattr(module, table, {}).values()]
    return tuple(("hook", _place(one)) for one in hooks[:4])


def _registered(failure: Failure, *methods: str) -> Details:
    """Lines of the running functions that register hooks."""
    return tuple(("hook", text) for text in list(_lines(failure, methods))[:4])


def _lines(failure: Failure, methods: tuple[str, ...]) -> Iterator[str]:
    for frame in failure.frames:
        if not frame.is_user or frame.function is None:
            continue
        for node in ast.walk(frame.function):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in methods:
                yield f"{shown_file(frame.file)}:{node.lineno}: {written(node, frame.file)}"


def _hooked(failure: Failure) -> nn.Module | None:
    """The module of a full backward hook that was running."""
    for frame in reversed(failure.frames):
        module = getattr(frame.owner, "module", None)
        if frame.file.endswith("utils/hooks.py") and isinstance(module, nn.Module):
            return module
    hooked = [
        one for _, one in failure.names.modules() if one._backward_hooks or one._backward_pre_hooks
    ]
    return hooked[0] if len(hooked) == 1 else None


def _module(failure: Failure) -> str:
    module = _hooked(failure)
    return "" if module is None else failure.names.module(module)


_FULL = ("_backward_hooks", "_backward_pre_hooks")


def _size(failure: Failure, found: re.Match[str]) -> Explanation:
    if found["hook"] == "hook" and _module(failure):  # The one that PyTorch makes for a module.
        return Explanation(
            "A full backward hook of a module returned a gradient of another shape.",
            ("Return a tuple of gradients of the shapes of grad_input, or None to keep them.",),
            _of_module(_hooked(failure), *_FULL),
            _module(failure),
        )
    return Explanation(
        f"The tensor hook {found['hook']!r} returned a gradient of another shape than it was "
        f"given.",
        (
            "Return a tensor of the same shape, or None to keep the gradient: a hook that only "
            "reads must not return what it computed.",
        ),
        _functions(failure, found["hook"]),
    )


def _type(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        f"The tensor hook {found['hook']!r} returned a {found['given']}, where the gradient is a "
        f"{found['wanted']}.",
        ("Return the dtype and the device of the gradient: result.to(grad).",),
        _functions(failure, found["hook"]),
    )


def _no_tensor(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        f"A hook on a tensor returned {found['given']}, where a tensor or None is expected.",
        ("Return None, or nothing, from a hook that only reads.",),
        _functions(failure),
    )


def _no_tuple(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        f"A hook of a node of the graph returned {found['given']}, where a tuple of all its "
        "gradients, or None, is expected.",
        (
            "Return a tuple, also of one: return (gradient,).",
            "Return None from a hook that only reads.",
        ),
        _registered(failure, "register_hook", "register_prehook"),
    )


def _number(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        f"A full backward hook returned {found['given']} values for {found['which']}, which has "
        f"{found['wanted']}.",
        (
            f"Return a tuple of {found['wanted']}, in the order of {found['which']}; a tensor "
            "alone counts by its rows.",
            "Return None from a hook that only reads.",
        ),
        _of_module(_hooked(failure), *_FULL),
        _module(failure),
    )


def _pre_hook(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        f"A forward pre-hook of {failure.module_text} with with_kwargs=True returned something "
        "other than None or (args, kwargs).",
        ("Return both: return (new_input,), kwargs.", "Return None from a hook that only reads."),
        _of_module(failure.module, "_forward_pre_hooks"),
    )


def _two_kinds(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        f"{failure.module_text} has a backward hook of the old kind, and cannot take a full one "
        "beside it.",
        ("Use register_full_backward_hook in place of register_backward_hook, everywhere.",),
        _of_module(failure.module, *_FULL),
    )


def _post(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        "A post-accumulate hook of a parameter returned a value; it may return nothing.",
        ("Change the gradient in place: param.grad.clamp_(-1, 1), and return nothing.",),
        _functions(failure),
    )


def _no_grad(failure: Failure, found: re.Match[str]) -> Explanation:
    tensors = [one for one in failure.tensors if not one.value.requires_grad]
    name = failure.name_of(tensors[0]) if tensors else "the tensor"
    it = grouped(name) if tensors else "x"
    return Explanation(
        f"{name} does not require grad, so no gradient will ever come to a hook or be retained "
        f"on it.",
        (
            f"Call {it}.requires_grad_() before, if it is an input.",
            f"Guard it: if {it}.requires_grad: ..., where forwards run under no_grad too.",
        ),
        failure.details(*tensors[:1]),
    )


SITUATIONS = {
    "hook changed the size": _size,
    "hook changed the type": _type,
    "hook returned no tensor": _no_tensor,
    "hook returned no tuple": _no_tuple,
    "number of grad_input": _number,
    "forward pre-hook": _pre_hook,
    "two kinds of backward hooks": _two_kinds,
    "post-accumulate hook": _post,
    "hook without grad": _no_grad,
}
