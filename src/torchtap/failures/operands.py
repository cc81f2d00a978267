"""The tensors of the operation that failed: what they were called, and what made them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchtap.core.text import typed
from torchtap.core.torch_private import is_of_transform, num_dispatch_modes
from torchtap.failures.assignments import Assignment, assignments_of
from torchtap.failures.frame import MISSING, Frame, shown_file
from torchtap.failures.graph_reading import place_of
from torchtap.failures.names import Names
from torchtap.failures.source import written

_MOST_CHARACTERS = 60
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "byte": "uint8",
    "char": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
}


class Operand(NamedTuple):
    """A value that an operation took.

    Attributes:
        text: the expression, as it stands in the source.
        value: what it stood for.
        depth: number of the frame, in which the expression stands.
    """

    text: str
    value: Any
    depth: int


class Origin(NamedTuple):
    """The origin of a tensor: what made it.

    Attributes:
        text: as words, for a sentence; empty if it is not known.
        name: what the program calls the tensor; the expression of the operand if nothing else.
        module: that made it, or that it belongs to, if that is known.
        is_state: whether it is a parameter or a buffer.
    """

    text: str
    name: str
    module: nn.Module | None = None
    is_state: bool = False


def operands_of(frames: Sequence[Frame]) -> list[Operand]:
    """Return the operands of the operation that failed, from the innermost frame that tells."""
    for depth in range(len(frames) - 1, -1, -1):
        if frames[depth].is_user and depth + 1 < len(frames) and frames[depth + 1].is_engine:
            return []  # What a backward failed with is not what it was started with.
        if frames[depth].is_inner or frames[depth].is_engine or frames[depth].raises_itself:
            continue
        found = list(_operands(frames[depth], depth))
        if any(_has_tensor(one.value) for one in found):
            return found
        if frames[depth].is_user:
            return found
    return []


def _has_tensor(value: Any) -> bool:
    if type(value) in (list, tuple):
        return any(isinstance(one, Tensor) for one in value)
    return isinstance(value, Tensor)


def _operands(frame: Frame, depth: int) -> Iterator[Operand]:
    for node in parts_of(frame.expression):
        if isinstance(node, ast.List | ast.Tuple):
            yield from (
                Operand(written(one, frame.file), frame.value_of(one), depth) for one in node.elts
            )
            continue
        value = frame.value_of(node)
        if inspect.ismodule(value):
            continue
        if type(value) in (list, tuple) and _has_tensor(value):
            text = written(node, frame.file)
            yield from (Operand(f"{text}[{at}]", one, depth) for at, one in enumerate(value))
        else:
            yield Operand(written(node, frame.file), value, depth)


def parts_of(node: ast.AST | None) -> list[ast.expr]:
    """The expressions whose values an operation takes."""
    if isinstance(node, ast.Call):
        own = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*own, *node.args, *(one.value for one in node.keywords)]
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.AugAssign):
        return [node.target, node.value]
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Subscript):
        return [node.value, node.slice]
    if isinstance(node, ast.Attribute):
        return [node.value]
    return []


def shape_of(value: Any) -> str:
    """A tensor as ``float32[2, 3]``, with its device if that is not the CPU."""
    if value is MISSING:
        return ""
    if not isinstance(value, Tensor):
        return type(value).__name__
    if is_lazy(value) or value.is_nested:
        return "without one shape"
    text = typed(str(value.dtype).removeprefix("torch."), tuple(value.shape))
    return text if value.device.type == "cpu" else f"{text} on {value.device}"


def bounds_of(value: object) -> tuple[float, float] | None:
    """The least and the greatest element; ``None`` where they cannot be read at once.

    On a GPU reading would wait for it, and fail after an error of a kernel. Inside a transform, or
    a mode of the program, it would not run by itself.
    """
    if type(value) not in (Tensor, nn.Parameter) or not isinstance(value, Tensor):
        return None
    is_plain = value.device.type == "cpu" and value.layout is torch.strided and not value.is_nested
    if not is_plain or num_dispatch_modes() or is_of_transform(value) or not value.numel():
        return None
    if value.is_complex() or value.dtype is torch.bool:
        return None
    low, high = value.detach().aminmax()
    return float(low), float(high)


def dtype_word(name: str) -> str:
    """PyTorch's older name of a dtype, such as ``Long``, as it is written today: ``int64``."""
    return _DTYPES.get(name.lower(), name.lower())


def origin_of(operand: Operand, frames: Sequence[Frame], names: Names) -> Origin:
    """Return what made the tensor of an operand: from the frames outwards, then from its graph."""
    value = operand.value
    if value is MISSING or isinstance(value, bool | int | float | str):
        return Origin("", operand.text)
    tensor = value if isinstance(value, Tensor) else None
    state = None if tensor is None else names.tensor(tensor)
    holder = None if tensor is None else names.holder(tensor)
    if state is not None and holder is not None:
        kind = "parameter" if isinstance(tensor, nn.Parameter) else "parameter or buffer"
        return Origin(f"the {kind} {state}", operand.text, holder, is_state=True)
    name, argument = operand.text, ""
    for depth in range(operand.depth, -1, -1):
        frame = frames[depth]
        if isinstance(frame.owner, nn.Sequential) and frame.is_torch:
            before = _before_in(frame)
            if before is not None and frame.names.get("input", MISSING) is value:
                return Origin(f"made by {names.module(before)}", name, before)
            continue
        if frame.is_torch or frame.is_ours or value is None:
            continue
        held = [key for key, one in frame.own_names.items() if one is value]
        if not held:
            continue
        name = name if name in held else held[0]
        made = [one for key in held for one in assignments_of(frame, key)]
        if made:
            return _from_assignments(made, frame, name, names, tensor)
        if held[0] in frame.code.co_varnames[: frame.code.co_argcount]:
            argument = f"an argument of {frame.code.co_name}"
    if frames[operand.depth].is_torch and not argument and name == operand.text:
        name = _as_handed_over(operand, frames)
    if tensor is not None and tensor.grad_fn is not None:
        text, module = place_of(tensor.grad_fn, names)
        return Origin(f"made by {text}", name, module)
    return Origin(argument, name)


def _as_handed_over(operand: Operand, frames: Sequence[Frame]) -> str:
    """The expression by which the program handed a value to PyTorch, whose own name says little.

    The text of the operand, where that expression is long, or cannot be told.
    """
    for depth in range(operand.depth, 0, -1):
        frame, caller = frames[depth], frames[depth - 1]
        if not frame.is_torch or caller.is_torch:
            continue
        for node, value in _given(caller.expression, frame):
            text = written(node, caller.file)
            if value is operand.value and len(text) <= _MOST_CHARACTERS:
                return text
        break
    return operand.text


def _given(call: ast.AST | None, frame: Frame) -> Iterator[tuple[ast.expr, Any]]:
    """The arguments of a call with the values that the frame of the called function has of them."""
    if not isinstance(call, ast.Call) or any(isinstance(one, ast.Starred) for one in call.args):
        return
    code, held = frame.code, frame.frame.f_locals
    names = [one for one in code.co_varnames[: code.co_argcount] if one not in ("self", "cls")]
    values = [_unless_assigned(frame, one) for one in names]
    if code.co_flags & inspect.CO_VARARGS:
        rest = held.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        values += rest if isinstance(rest, tuple) else ()
    yield from zip(call.args, values, strict=False)
    others = held.get("kwargs")
    for one in call.keywords:
        if one.arg is not None and one.arg in names:
            yield one.value, _unless_assigned(frame, one.arg)
        elif type(others) is dict and one.arg in others:
            yield one.value, others[one.arg]


def _unless_assigned(frame: Frame, name: str) -> Any:
    """An argument of a function that still has the value with which it was called."""
    return MISSING if assignments_of(frame, name) else frame.frame.f_locals.get(name, MISSING)


def _before_in(frame: Frame) -> nn.Module | None:
    """The module of a Sequential that ran before the one that is running."""
    children = list(frame.owner._modules.values())
    running = frame.names.get("module")
    at = [number for number, one in enumerate(children) if one is running]
    return children[at[0] - 1] if len(at) == 1 and at[0] > 0 else None


def _from_assignments(
    made: list[Assignment], frame: Frame, name: str, names: Names, tensor: Tensor | None
) -> Origin:
    place = f"{shown_file(frame.file)}:" + " or ".join(str(one.line) for one in made)
    if len(made) > 1:
        return Origin(f"assigned at {place}", name)
    value = made[0].value
    module = None
    if isinstance(value, ast.Call):
        called = frame.value_of(value.func)
        module = called if isinstance(called, nn.Module) else None
    text = f"made at {place}: {made[0].text}"
    if module is not None:
        text = f"made by {names.module(module)} at {place}: {made[0].text}"
    elif tensor is not None and tensor.grad_fn is not None:
        text = f"{text}, by {place_of(tensor.grad_fn, names)[0]}"
    return Origin(text, name, module)
