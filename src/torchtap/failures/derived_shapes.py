"""The shape of an expression that has no value to be read, from the tensors that stand in it.

``mask == 0`` and ``x.transpose(1, 2)`` are no variables. PyTorch computes their shape on its meta
device from the shapes of ``mask`` and ``x``: no code of the program runs, and no value is read.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.torch_private import is_of_transform, num_dispatch_modes
from torchtap.failures.failure import Failure
from torchtap.failures.operands import Operand
from torchtap.failures.parsed_source import expression_of
from torchtap.failures.stand_ins import BINARY, UNARY
from torchtap.failures.traceback_frame import MISSING, TracebackFrame

_BINARY = {**BINARY, ast.Pow: operator.pow}
_METHODS = frozenset(
    [
        "abs",
        "argmax",
        "bool",
        "chunk",
        "clamp",
        "clone",
        "contiguous",
        "cpu",
        "cuda",
        "detach",
        "double",
        "exp",
        "expand",
        "flatten",
        "float",
        "half",
        "int",
        "log",
        "log_softmax",
        "long",
        "max",
        "mean",
        "min",
        "movedim",
        "permute",
        "pow",
        "relu",
        "repeat",
        "reshape",
        "round",
        "rsqrt",
        "sigmoid",
        "softmax",
        "sqrt",
        "squeeze",
        "std",
        "sum",
        "t",
        "tanh",
        "transpose",
        "type_as",
        "unflatten",
        "unsqueeze",
        "view",
    ]
)
"""Methods of tensors that say a shape, draw nothing, and write nothing."""
_LAYERS: dict[type, Callable[..., Any]] = {
    nn.Linear: torch.nn.functional.linear,
    nn.Embedding: torch.nn.functional.embedding,
    nn.Conv1d: torch.nn.functional.conv1d,
    nn.Conv2d: torch.nn.functional.conv2d,
    nn.Conv3d: torch.nn.functional.conv3d,
}
"""Layers whose parameters and options say the shape of what they make."""
_ATTRIBUTES = ("mT", "T", "data", "real")
_MAKERS = frozenset(
    {"arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "zeros"}
)
"""Functions that make a tensor of a shape that they are given."""


def shaped_operands(failure: Failure) -> list[Operand]:
    """Return the operands of the operation that failed, with the shapes of those not known."""
    return [_with_shape(one, failure.frames[one.depth]) for one in failure.operands]


def tensors_inside(failure: Failure) -> list[Operand]:
    """Return the tensors of which operands without a value are computed, by their names."""
    found: dict[str, Operand] = {}
    for one in failure.operands:
        frame = failure.frames[one.depth]
        parts = ast.walk(_parsed(one.text)) if one.value is MISSING else ()
        for part in parts:
            value = frame.value_of(part) if isinstance(part, ast.Name | ast.Attribute) else None
            if isinstance(value, Tensor) and isinstance(part, ast.expr):
                text = ast.unparse(part)
                found.setdefault(text, Operand(text, value, one.depth))
    return list(found.values())


def on_meta(node: ast.expr, frame: TracebackFrame) -> Any:
    """Return the value of an expression, its tensors on meta; raises where it is not known."""
    return _computed(node, frame)


def _parsed(text: str) -> ast.expr:
    return expression_of(text) or ast.Constant(None)


def _with_shape(operand: Operand, frame: TracebackFrame) -> Operand:
    """Return an operand with a tensor on meta in place of a value that is not known, if it can."""
    if operand.value is not MISSING or num_dispatch_modes():
        return operand
    try:
        value = _computed(_parsed(operand.text), frame)
    except Exception:  # noqa: BLE001 - shapes that do not fit, or an argument that is no constant
        return operand
    return operand._replace(value=value) if isinstance(value, Tensor) else operand


def _computed(node: ast.expr, frame: TracebackFrame) -> Any:
    """Return the value of an expression, in which tensors are on meta; raises where none is."""
    known = frame.value_of(node)
    if known is not MISSING:
        return _on_meta(known)
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_computed(left, frame), _computed(right, frame))
        case ast.UnaryOp(op=op, operand=operand):
            return UNARY[type(op)](_computed(operand, frame))
        case ast.Compare(left=left, comparators=[right]):
            return torch.ne(_computed(left, frame), _computed(right, frame))
        case ast.Attribute(value=base, attr=attr) if attr in _ATTRIBUTES:
            return getattr(_of_tensor(_computed(base, frame)), attr)
        case ast.Subscript(value=base, slice=index):
            return _of_tensor(_computed(base, frame))[_index(index, frame)]
        case ast.Call(func=func, args=[only], keywords=[]) if type(frame.value_of(func)) in _LAYERS:
            return _of_layer(frame.value_of(func), _of_tensor(_computed(only, frame)))
        case ast.Call(func=ast.Attribute(attr=attr), args=args, keywords=[]) if (
            attr in _MAKERS and frame.value_of(node.func) is vars(torch)[attr]
        ):
            made: Tensor = vars(torch)[attr](
                *(_computed(one, frame) for one in args), device="meta"
            )
            return made
        case ast.List(elts=elements):
            return [_computed(one, frame) for one in elements]
        case ast.Tuple(elts=elements):
            return tuple(_computed(one, frame) for one in elements)
        case ast.Call(func=ast.Attribute(value=base, attr=attr), args=args, keywords=keywords):
            if attr in ("size", "dim", "numel"):
                return getattr(_of_tensor(_computed(base, frame)), attr)(
                    *(_computed(one, frame) for one in args)
                )
            named = {str(one.arg): _computed(one.value, frame) for one in keywords}
            whole = _of_tensor(_computed(base, frame))
            if attr in ("cpu", "cuda"):  # Meta has no values to be copied, and the shape stays.
                return whole
            given = [_computed(one, frame) for one in args]
            return getattr(whole, attr)(*given, **named) if attr in _METHODS else MISSING
    raise TypeError


def _of_layer(layer: Any, given: Tensor) -> Tensor:
    """Return what a layer makes of an input on meta, without the hooks of the layer."""
    options: tuple[Any, ...] = ()
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        options = (None, layer.stride, layer.padding, layer.dilation, layer.groups)
    made: Tensor = _LAYERS[type(layer)](given, _on_meta(layer.weight), *options)
    return made


def _of_tensor(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError
    return value


def _on_meta(value: Any) -> Any:
    """Return a value with its shape alone; raises where it is neither a tensor nor a constant."""
    if type(value) in (Tensor, nn.Parameter) and not is_of_transform(value) and not value.is_nested:
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    if type(value) in (bool, int, float, torch.Size):
        return value
    if type(value) in (list, tuple):
        return type(value)(_on_meta(one) for one in value)
    raise TypeError


def _index(node: ast.expr, frame: TracebackFrame) -> Any:
    match node:
        case ast.Tuple(elts=parts):
            return tuple(_index(one, frame) for one in parts)
        case ast.Slice(lower=lower, upper=upper, step=step):
            ends = (lower, upper, step)
            return slice(*(None if one is None else _computed(one, frame) for one in ends))
        case ast.Constant(value=None | int() as value):
            return value
        case ast.Constant(value=value) if value is Ellipsis:
            return value
    return _computed(node, frame)
