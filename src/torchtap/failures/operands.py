"""The tensors of the operation that failed: what they were called, and what made them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchtap.core.source_files import shown_file
from torchtap.core.text import typed
from torchtap.core.torch_private import is_of_transform, num_dispatch_modes
from torchtap.failures.assignments import (
    Assignment,
    assignments_of,
    is_assigned_in_loop,
    looped_over,
    names_in,
)
from torchtap.failures.graph_reading import place_of_node
from torchtap.failures.module_names import Names
from torchtap.failures.parsed_source import written
from torchtap.failures.traceback_frame import MISSING, TracebackFrame

_MOST_CHARACTERS = 60
_FIRST_ROUND: Any = object()
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "byte": "uint8",
    "char": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "complexhalf": "complex32",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
}


class Operand(NamedTuple):
    """A value that an operation took.

    Attributes:
        text: the expression, as it stands in the source.
        value: what it stood for; ``MISSING`` where that is not known.
        depth: number of the frame, in which the expression stands.
    """

    text: str
    value: Any = MISSING
    depth: int = 0


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


def operands_of(frames: Sequence[TracebackFrame]) -> list[Operand]:
    """Return the operands of the operation that failed, from the innermost frame that tells."""
    for frame in reversed(frames):
        # The frame that this one called.
        following = frames[frame.depth + 1 : frame.depth + 2]
        if frame.is_user and following and following[0].is_engine:
            return []  # What a backward failed with is not what it was started with.
        if frame.is_inner or frame.is_engine or frame.raises_itself:
            continue
        operands = list(_operands(frame))
        held = (
            operand.value if type(operand.value) in (list, tuple) else [operand.value]
            for operand in operands
        )
        if frame.is_user or any(isinstance(value, Tensor) for values in held for value in values):
            return operands
    return []


def _operands(frame: TracebackFrame) -> Iterator[Operand]:
    for node in parts_of_expression(frame.expression):
        if isinstance(node, ast.List | ast.Tuple):
            for element in node.elts:
                yield Operand(written(element, frame.file), frame.value_of(element), frame.depth)
            continue
        text, value = written(node, frame.file), frame.value_of(node)
        items = value if type(value) in (list, tuple) else ()
        # torch.cat(xs): each tensor of the list is an operand.
        if any(isinstance(one, Tensor) for one in items):
            for at, item in enumerate(items):
                yield Operand(f"{text}[{at}]", item, frame.depth)
        elif not inspect.ismodule(value):
            yield Operand(text, value, frame.depth)


def parts_of_expression(node: ast.AST | None) -> list[ast.expr]:
    """Return the expressions whose values an operation takes."""
    if isinstance(node, ast.Call):
        own = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*own, *node.args, *(keyword.value for keyword in node.keywords)]
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.AugAssign):
        return [node.target, node.value]
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Subscript):
        return [node.value, node.slice]
    if isinstance(node, ast.Attribute):
        return [node.value]
    return []


def shape_text(value: Any) -> str:
    """Return a tensor as ``float32[2, 3]``, with its device if that is not the CPU."""
    if value is MISSING:
        return ""
    if not isinstance(value, Tensor):
        return type(value).__name__
    if is_lazy(value) or value.is_nested:
        return "without one shape"
    text = typed(str(value.dtype).removeprefix("torch."), tuple(value.shape))
    return text if value.device.type == "cpu" else f"{text} on {value.device}"


def dtype_text(value: object) -> str:
    """Return the dtype of a tensor, such as ``float32``; ``?`` of what is none."""
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else "?"


def bounds_of(value: object) -> tuple[float, float] | None:
    """Return the least and the greatest element; ``None`` where they cannot be read at once.

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
    # detach(), since the graph of the program must not get a node.
    low, high = value.detach().aminmax()
    return float(low), float(high)


def dtype_word(name: str) -> str:
    """PyTorch's older name of a dtype, such as ``Long``, as it is written today: ``int64``."""
    return _DTYPES.get(name.lower(), name.lower())


def origin_of(operand: Operand, frames: Sequence[TracebackFrame], names: Names) -> Origin:
    """Return what made the tensor of an operand: from the frames outwards, then from its graph."""
    value = operand.value
    if value is MISSING or isinstance(value, bool | int | float | str):
        return Origin("", operand.text)
    state = names.state(value)
    if state is not None:
        kind = "parameter" if isinstance(value, nn.Parameter) else "parameter or buffer"
        return Origin(f"the {kind} {state.name}", operand.text, state.module, is_state=True)
    name, argument = operand.text, ""
    # Outwards from where the expression stands: an argument is followed to what the caller
    # assigned.
    for frame in reversed(frames[: operand.depth + 1]):
        if isinstance(frame.owner, nn.Sequential) and frame.is_torch:
            before = _before_in(frame)
            if before is not None and frame.names.get("input", MISSING) is value:
                return Origin(f"made by {names.module(before)}", name, before)
        if frame.is_torch or value is None:
            continue
        held = [key for key, one in frame.own_names.items() if one is value]
        if not held:
            continue
        # The innermost name of the program's that still holds the very tensor.
        name = (
            name if name in held or _is_another(frames[operand.depth], held[0], value) else held[0]
        )
        made = [one for key in held for one in assignments_of(frame, key)]
        if made:
            return _from_assignments(made, frame, name, names, value)
        # The first names of co_varnames are the positional arguments.
        if held[0] in frame.code.co_varnames[: frame.code.co_argcount]:
            argument = f"an argument of {frame.code.co_name}"
    if frames[operand.depth].is_torch and not argument and name == operand.text:
        given = _handed_over(frames, operand.depth)
        fitting = (text for text, one in given if one is value and len(text) <= _MOST_CHARACTERS)
        name = next(fitting, name)
    if isinstance(value, Tensor) and value.grad_fn is not None:
        text, module = place_of_node(value.grad_fn, names)
        return Origin(f"made by {text}", name, module)
    return Origin(argument, name)


def _is_another(frame: TracebackFrame, name: str, value: Any) -> bool:
    """Return whether a name stands for another value in a frame of the program."""
    return not frame.is_torch and frame.own_names.get(name, value) is not value


def _handed_over(frames: Sequence[TracebackFrame], depth: int) -> Iterator[tuple[str, Any]]:
    """The expressions by which the program handed values to PyTorch, whose own names say little.

    Each with the value that the called function has of it.

    Args:
        frames: of the exception.
        depth: number of a frame of PyTorch.
    """
    # Up to the frame that the program itself called: F.linear within nn.Linear is called by
    # PyTorch.
    while depth and frames[depth - 1].is_torch:
        depth -= 1
    frame, caller = frames[depth], frames[depth - 1]
    call = caller.expression if depth else None
    if not isinstance(call, ast.Call) or any(isinstance(arg, ast.Starred) for arg in call.args):
        return
    code, held = frame.code, frame.frame.f_locals
    names = [
        varname
        for varname in code.co_varnames[: code.co_argcount]
        if varname not in ("self", "cls")
    ]
    values = [_unless_assigned(frame, name) for name in names]
    # The name of *args follows those of positional and keyword-only arguments.
    if code.co_flags & inspect.CO_VARARGS:
        rest = held.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        values += rest if isinstance(rest, tuple) else ()
    for one, value in zip(call.args, values, strict=False):
        yield written(one, caller.file), value
    others = held.get("kwargs")
    for given in call.keywords:
        if given.arg is not None and given.arg in names:
            yield written(given.value, caller.file), _unless_assigned(frame, given.arg)
        elif type(others) is dict and given.arg in others:
            yield written(given.value, caller.file), others[given.arg]


def _unless_assigned(frame: TracebackFrame, name: str) -> Any:
    """Return an argument of a function that still has the value with which it was called."""
    # PyTorch's functions often assign to their arguments (input = input.contiguous()).
    return MISSING if assignments_of(frame, name) else frame.frame.f_locals.get(name, MISSING)


def _before_in(frame: TracebackFrame) -> nn.Module | None:
    """Return the module of a Sequential that ran before the one that is running."""
    children = list(frame.owner._modules.values())
    running = frame.names.get("module")
    at = [number for number, one in enumerate(children) if one is running]
    return children[at[0] - 1] if len(at) == 1 and at[0] > 0 else None


def _from_assignments(
    made: list[Assignment], frame: TracebackFrame, name: str, names: Names, value: Any
) -> Origin:
    place = f"{shown_file(frame.file)}:" + " or ".join(str(one.line) for one in made)
    is_argument = name in frame.code.co_varnames[: frame.code.co_argcount]
    argument = f"an argument of {frame.code.co_name}"
    if len(made) > 1:
        return Origin(f"assigned at {place}", name)
    called = _called_then(made[0], frame)
    text = f"made at {place}: {made[0].text}"
    if called is _FIRST_ROUND and is_argument:
        return Origin(argument, name)
    if isinstance(called, nn.Module):
        text = f"made by {names.module(called)} at {place}: {made[0].text}"
        return Origin(text, name, called)
    if is_argument and made[0].line >= frame.line:
        text = f"{argument}, or {text}"
    if isinstance(value, Tensor) and value.grad_fn is not None:
        text = f"{text}, by {place_of_node(value.grad_fn, names)[0]}"
    return Origin(text, name)


def _called_then(made: Assignment, frame: TracebackFrame) -> Any:
    """Return what an assignment called when it ran; :data:`MISSING` where that is not known.

    At the frame's line or below it stands for an earlier round of a loop, in which a name may have
    stood for something else; :data:`_FIRST_ROUND` if there was none.
    """
    if not isinstance(made.value, ast.Call):
        return MISSING
    func = made.value.func
    if made.line < frame.line or not is_assigned_in_loop(frame, names_in(func)):
        return frame.value_of(func)
    over = looped_over(frame, func.id) if isinstance(func, ast.Name) else None
    held = MISSING if over is None else frame.value_of(over)
    if isinstance(held, nn.Sequential | nn.ModuleList):
        held = list(held._modules.values())
    now = frame.value_of(func)
    at = [number for number, one in enumerate(held) if one is now] if type(held) is list else []
    if len(at) != 1:
        return MISSING
    return held[at[0] - 1] if at[0] else _FIRST_ROUND


def has_channels_first(maker: nn.Module | None) -> bool:
    """Return whether a module certainly returns its channels behind the batch."""
    if type(maker) is nn.Sequential:  # An activation returns the shape that it is given.
        members = reversed(list(maker._modules.values()))
        shaping = (one for one in members if not type(one).__module__.endswith("activation"))
        return has_channels_first(next(shaping, None))
    home = type(maker).__module__
    return home in {f"torch.nn.modules.{one}" for one in ("conv", "pooling", "batchnorm")}
