"""Gradients that are ``None``, in the expression that failed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchtap.failures.assignments import assignments_of, looped_over
from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.traceback_frame import MISSING, TracebackFrame


class Read(NamedTuple):
    """A tensor whose gradient was read.

    Attributes:
        text: the expression in front of ``.grad``, or that was handed to ``torch.autograd.grad``.
        tensor: its value; ``None`` where it is not known.
        is_asked: whether ``torch.autograd.grad`` gave the gradient.
    """

    text: str
    tensor: Tensor | None
    is_asked: bool = False


def gradients_read(failure: Failure) -> list[Read]:
    """Return the gradients in the expression that failed that are ``None``."""
    reads: list[Read] = []
    for frame in reversed(failure.frames):
        if frame.expression is not None:
            reads += _reads(frame, frame.expression)
        if reads or not frame.is_torch:
            break
    user = failure.user
    if not reads and user is not None and user is not failure.frames[-1]:
        reads += _reads(user, user.expression) if user.expression is not None else []
    # g = p.grad; g.norm(): the expression names the variable alone.
    if not reads and user is not None:
        reads += _of_variable(user)
    return reads or _of_autograd_grad(failure)


def _reads(frame: TracebackFrame, expression: ast.AST) -> Iterator[Read]:
    for node in ast.walk(expression):
        match node:
            case ast.Attribute(attr="grad"):
                owner = frame.value_of(node.value)
                if isinstance(owner, Tensor) and _has_none(owner):
                    yield Read(grouped(written(node.value, frame.file)), owner)
            case ast.ListComp(elt=ast.Attribute(attr="grad"), generators=[over, *_]):
                yield from _of_parameters(frame, over.iter)
            case ast.GeneratorExp(elt=ast.Attribute(attr="grad"), generators=[over, *_]):
                yield from _of_parameters(frame, over.iter)


def _has_none(tensor: Tensor) -> bool:
    """Return whether the gradient is ``None``. To read it of what is no leaf would warn."""
    return tensor.grad is None if tensor.is_leaf else not tensor.retains_grad


def _of_parameters(frame: TracebackFrame, over: ast.expr) -> Iterator[Read]:
    """Yield ``[p.grad for p in model.parameters()]``: the parameters without one."""
    call = over.func if isinstance(over, ast.Call) else None
    if isinstance(call, ast.Attribute) and call.attr in ("parameters", "named_parameters"):
        owner, text = frame.value_of(call.value), written(call.value)
        for name, one in owner.named_parameters() if isinstance(owner, nn.Module) else ():
            if one.grad is None:
                yield Read(f"{text}.{name}", one)


def _of_variable(frame: TracebackFrame) -> Iterator[Read]:
    """Yield a variable that is ``None`` and was assigned from a ``.grad``."""
    for node in ast.walk(frame.expression) if frame.expression is not None else ():
        if isinstance(node, ast.Name) and frame.names.get(node.id, MISSING) is None:
            for one in assignments_of(frame, node.id):
                if one.value is not None:
                    yield from _reads(frame, one.value)


def _of_autograd_grad(failure: Failure) -> list[Read]:
    """Return the input of ``torch.autograd.grad`` whose gradient failed, as it is ``None``."""
    inner = failure.user
    if inner is None or inner.expression is None:
        return []
    for node in ast.walk(inner.expression):
        if isinstance(node, ast.Name | ast.Subscript) and inner.value_of(node) is None:
            # In a comprehension, the gradients are a variable of the function around it.
            for frame in (one for one in reversed(failure.frames) if one.is_user):
                read = _asked_for(frame, inner, node)
                if read is not None:
                    return [read]
    return []


def _asked_for(
    frame: TracebackFrame, inner: TracebackFrame, node: ast.Name | ast.Subscript
) -> Read | None:
    """Return the input of the ``torch.autograd.grad`` in a frame that gave an expression."""
    if isinstance(node, ast.Subscript):
        return _at(frame, node.value, inner.value_of(node.slice))
    over = looped_over(inner, node.id)
    if over is not None:
        held = frame.value_of(over)
        # The rounds before had one, or they would have failed.
        is_none = [one is None for one in held] if type(held) in (list, tuple) else []
        return _at(frame, over, is_none.index(True)) if True in is_none else None
    for made in assignments_of(frame, node.id):
        if _is_grad(frame, made.value):
            return _input(frame, made.value, made.position or 0)
        if isinstance(made.value, ast.Subscript):
            return _asked_for(frame, frame, made.value)
    return None


def _at(frame: TracebackFrame, gradients: ast.expr, key: object) -> Read | None:
    """Return the input whose gradient stands at a key of what holds the gradients."""
    held = frame.value_of(gradients)
    if type(held) is dict and key in held:  # dict(zip(names, gradients))
        key = list(held).index(key)
    for made in assignments_of(frame, gradients.id) if isinstance(gradients, ast.Name) else ():
        if _is_grad(frame, made.value) and type(key) is int:
            return _input(frame, made.value, key)
        match made.value:
            case ast.Call(func=ast.Name("dict"), args=[ast.Call(ast.Name("zip"), [_, inner])]):
                return _at(frame, inner, key)
            case ast.Call(func=ast.Name("list" | "tuple"), args=[inner]):
                return _at(frame, inner, key)
    return None


def _is_grad(frame: TracebackFrame, node: ast.expr | None) -> bool:
    return isinstance(node, ast.Call) and frame.value_of(node.func) is torch.autograd.grad


def _input(frame: TracebackFrame, call: ast.expr | None, at: int) -> Read | None:
    """Return the tensor at a position of the inputs of ``torch.autograd.grad``."""
    assert isinstance(call, ast.Call)
    given = [one.value for one in call.keywords if one.arg == "inputs"] or call.args[1:2]
    if not given:
        return None
    match given[0]:
        case ast.List(elts=items) | ast.Tuple(elts=items) if not _has_starred(items):
            texts = [written(one, frame.file) for one in items]
        case ast.Name():
            texts = [f"{written(given[0])}[{at}]"] * (at + 1)
        case _:
            texts = [f"input {at} of torch.autograd.grad"] * (at + 1)
    values = _values(frame, given[0])
    value = values[at] if -len(values) <= at < len(values) else None
    tensor = value if isinstance(value, Tensor) else None
    return Read(texts[at], tensor, is_asked=True) if -len(texts) <= at < len(texts) else None


def _has_starred(items: list[ast.expr]) -> bool:
    return any(isinstance(one, ast.Starred) for one in items)


def _values(frame: TracebackFrame, inputs: ast.expr) -> list[object]:
    """Return the inputs of ``torch.autograd.grad``, as far as looking them up tells."""
    match inputs:
        case ast.Call(func=ast.Name("list" | "tuple"), args=[inner]):
            return _values(frame, inner)
        case ast.Call(func=ast.Attribute(owner, "parameters"), args=[], keywords=[]):
            module = frame.value_of(owner)
            return list(module.parameters()) if isinstance(module, nn.Module) else []
        case ast.Call(func=ast.Attribute(owner, "values"), args=[]):
            held = frame.value_of(owner)
            return list(held.values()) if type(held) is dict else []
        case ast.List(elts=items) | ast.Tuple(elts=items) if _has_starred(items):
            parts = [one.value if isinstance(one, ast.Starred) else one for one in items]
            return [value for one in parts for value in _values(frame, one)]
    held = frame.value_of(inputs)
    return list(held) if type(held) in (list, tuple) else [held]
