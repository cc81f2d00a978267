"""Sizes that a program takes from another dimension of a tensor than the one that is meant.

``make_mask(x.shape[0])`` gives a mask of the batch where one of the time is needed. The mistake
stands where the number was taken, often some lines above the operation that refuses it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torch import Tensor

from torchtap.core.source_files import is_of_library, shown_file
from torchtap.failures.failure import Failure
from torchtap.failures.followed_values import steps_of
from torchtap.failures.misplaced_members import is_of_shapes
from torchtap.failures.operands import Operand
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.scopes import Expression
from torchtap.failures.value_chains import chain_of

_NUMBER = re.compile(r"(?<![\w.])(?<!dimension )(?<!number )\d+(?![\w.])")


def counted_elsewhere(failure: Failure) -> str:
    """Return the way out where an operand was made with a size that another dimension has.

    Empty where none of the sizes in the message was taken from a tensor that has another of them.
    """
    if not is_of_shapes(failure):
        return ""
    sizes = {int(one) for one in _NUMBER.findall(failure.text)} - {0, 1}
    given = (one for one in (*failure.tensors, *_given_by_user(failure)))
    plain = (one for one in given if not one.value.is_nested)  # Those have one shape.
    for operand in plain:
        wanted = sizes - set(operand.value.shape)
        for call in _calls_that_made(failure, operand):
            way = _way(call, operand.value, wanted)
            if way:
                return way
    return ""


def _given_by_user(failure: Failure) -> Iterator[Operand]:
    """Yield the tensors that the program's own call gives, whatever PyTorch's line is about."""
    frame = failure.user
    node = None if frame is None else frame.expression
    if frame is None or not isinstance(node, ast.Call):
        return
    for one in (*node.args, *(keyword.value for keyword in node.keywords)):
        value = frame.value_of(one)
        if isinstance(value, Tensor):
            yield Operand(written(one, frame.file), value, frame.depth)


def _calls_that_made(failure: Failure, operand: Operand) -> Iterator[Expression]:
    for step in chain_of(failure, operand):
        node: ast.expr = step.node
        while isinstance(node, ast.Call) and not step.path and not is_of_library(step.scope.file):
            yield step.part(node)
            # torch.ones(n, n).triu() leads on to torch.ones(n, n), which was called first.
            node = node.func.value if isinstance(node.func, ast.Attribute) else node.func


def _way(call: Expression, made: Tensor, wanted: set[int]) -> str:
    """Return the way to take another size of a tensor in a call that made an operand."""
    assert isinstance(call.node, ast.Call)
    for node in _arguments(call.node):
        base, dim = _taken(call, node)
        held = None if base is None else base.value
        if base is None or not isinstance(held, Tensor) or held.is_nested:
            continue
        if not -held.dim() <= dim < held.dim() or made is held:
            continue
        own, size = dim % held.dim(), held.shape[dim]
        others = [at for at, other in enumerate(held.shape) if at != own and other in wanted]
        if 1 < size in made.shape and len(others) == 1:
            name, other = base.text, others[0]
            file, at = call.scope.file, call.line
            old, new = written(node, file), f"{grouped(name)}.size({other})"
            text = re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", new, written(call.node, file))
            return (
                f"{shown_file(file)}:{at} counts dimension {own} of {name}, {size}: if dimension "
                f"{other}, of {held.shape[other]}, is meant, {text}."
            )
    return ""


def _arguments(call: ast.Call) -> Iterator[ast.expr]:
    """Yield the numbers that a call may be given: its arguments, and the parts of tuples."""
    for one in (*call.args, *(keyword.value for keyword in call.keywords)):
        yield from one.elts if isinstance(one, ast.Tuple | ast.List) else (one,)


def _taken(call: Expression, node: ast.expr) -> tuple[Expression | None, int]:
    """Return the tensor and the dimension whose size an argument is."""
    base, dim = size_of(node)
    if base is not None:
        return call.part(base), dim
    for step in steps_of(call.part(node)) if isinstance(node, ast.Name) else ():
        at = step.path[-1] if len(step.path) == 1 else None
        match step.node:
            case (
                ast.Attribute(value=whole, attr="shape")
                | ast.Call(func=ast.Attribute(value=whole, attr="size"), args=[])
            ) if isinstance(at, int):
                return step._replace(node=whole, path=()), at
        base, dim = size_of(step.node)
        if base is not None and not step.path:
            return step.part(base), dim
    return None, 0


def size_of(node: ast.expr) -> tuple[ast.expr | None, int]:
    """Return the tensor and dimension whose size an expression is: ``x`` and 0 of ``len(x)``."""
    match node:
        case ast.Call(func=ast.Name("len"), args=[base]):
            return base, 0
        case ast.Call(func=ast.Attribute(value=base, attr="size"), args=[dim]):
            pass
        case ast.Subscript(value=ast.Attribute(value=base, attr="shape"), slice=dim):
            pass
        case _:
            return None, 0
    try:
        at = ast.literal_eval(dim)
    except ValueError:
        return None, 0
    return (base, at) if type(at) is int else (None, 0)
