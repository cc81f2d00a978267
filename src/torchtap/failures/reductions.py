"""Reductions that took a dimension away, which the shapes of an operation then lack."""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence

from torch import Tensor

from torchtap.core.source_files import shown_file
from torchtap.failures.failure import Failure
from torchtap.failures.followed_values import steps_of
from torchtap.failures.operands import Operand, parts_of_expression
from torchtap.failures.parsed_source import written
from torchtap.failures.rearrangements import broadcasts
from torchtap.failures.scopes import Expression, scope_of

_PLACES = {
    **dict.fromkeys(("sum", "mean", "prod", "amax", "amin", "logsumexp", "std", "var"), 0),
    **dict.fromkeys(("nansum", "nanmean", "any", "all", "argmax", "argmin"), 0),
    **dict.fromkeys(("norm", "vector_norm"), 1),
    **dict.fromkeys(("max", "min", "median"), 0),
}
"""Reduction -> the place of ``dim`` among its arguments, behind the tensor."""
_BY_ELEMENT = frozenset(
    {
        *("sqrt", "rsqrt", "exp", "log", "abs", "square", "reciprocal", "neg", "pow", "clamp"),
        *("clamp_min", "clamp_max", "float", "double", "half", "long", "detach", "clone", "add"),
    }
)
"""Functions and methods whose result has the shape of the tensor, given numbers beside it."""
_OF_PAIRS = frozenset({"max", "min", "median"})
"""Reductions along a dimension that return the values and their indices."""
_MOST_STEPS = 8


def with_its_dimension(
    failure: Failure, operand: Operand, other: Sequence[int], shape: Sequence[int] | None
) -> str:
    """Return the way to keep the dimension that a reduction took out of an operand.

    Empty where no reduction did, or the shapes do not fit with it.

    Args:
        failure: the exception.
        operand: that lacks the dimension.
        other: the shape that it is to be repeated to.
        shape: of the operand; ``None`` where it is not known.
    """
    made = _reduction(failure, operand)
    found = made and _reduced(made.node)
    if made is None or not found:
        return ""
    base, dims = found
    held = made.scope.value_of(base)
    if shape is None and isinstance(held, Tensor):
        num = held.dim()
        taken = {dim % num for dim in dims} if num else set()
        kept = [1 if at in taken else size for at, size in enumerate(held.shape)]
    else:
        kept = [] if shape is None else _with_ones(shape, dims)
    if not kept or not broadcasts(kept, other):
        return ""
    text = written(made.node, made.scope.file)
    is_here = failure.user is not None and made.line == failure.user.line
    place = "" if is_here else f" of {shown_file(made.scope.file)}:{made.line}"
    which = f"dimension {dims[0]}" if dims[0] >= 0 or len(dims) > 1 else "a dimension"
    which = which if len(dims) == 1 else f"the dimensions {', '.join(map(str, dims))}"
    return (
        f"{text}{place} takes {which} away, and shapes are aligned from the last one on; to repeat "
        f"it there, keep what it takes away: {text[:-1].rstrip(', ')}, keepdim=True)."
    )


def over_another_dimension(failure: Failure, operand: Operand, other: Sequence[int]) -> str:
    """Return the way to reduce another dimension, whose result fits a tensor; else empty.

    Args:
        failure: the exception.
        operand: that a reduction of one dimension may have made.
        other: the shape that it is to fit.
    """
    made = _reduction(failure, operand)
    found = made and _reduced(made.node)
    if made is None or not found or len(found[1]) != 1 or not isinstance(made.node, ast.Call):
        return ""
    held = made.scope.value_of(found[0])
    shape = list(held.shape) if isinstance(held, Tensor) else []
    taken = found[1][0] % len(shape) if shape else 0
    left = [*shape[:taken], *shape[taken + 1 :]]
    fitting = [at for at in range(len(shape)) if [*shape[:at], *shape[at + 1 :]] == list(other)]
    is_read = not isinstance(operand.value, Tensor) or list(operand.value.shape) == left
    if len(fitting) != 1 or taken in fitting or not is_read:
        return ""
    text, at = written(made.node, made.scope.file), fitting[0]
    new = _with_dimension(made.node, at)
    is_here = failure.user is not None and made.line == failure.user.line
    place = "" if is_here else f" of {shown_file(made.scope.file)}:{made.line}"
    return (
        f"{text}{place} takes dimension {taken} of {shape} away and leaves {left}: if it is to "
        f"leave {list(other)}, take dimension {at} away: {new}."
    )


def _with_dimension(node: ast.Call, dim: int) -> str:
    """Return a call of a reduction over another dimension."""
    new = copy.deepcopy(node)
    number = ast.Constant(dim)
    named = [one for one in new.keywords if one.arg == "dim"]
    for one in named:
        one.value = number
    if not named:
        new.args[-1] = number
    return ast.unparse(new)


def _with_ones(shape: Sequence[int], dims: Sequence[int]) -> list[int]:
    num = len(shape) + len(dims)
    kept = list(shape)
    if len({dim % num for dim in dims}) < len(dims) or not all(-num <= one < num for one in dims):
        return []
    for at in sorted(dim % num for dim in dims):
        kept.insert(at, 1)
    return kept


def _reduction(failure: Failure, operand: Operand) -> Expression | None:
    """Return the call of a reduction that an operand is, but for what is done to each element."""
    frame = failure.frames[operand.depth]
    nodes = parts_of_expression(frame.expression)
    node = next((one for one in nodes if written(one, frame.file) == operand.text), None)
    one = None if node is None else Expression(node, scope_of(frame, failure.frames))
    for _ in range(_MOST_STEPS):
        if one is None or (one.path and one.path not in ((0,), (1,))):
            return None
        if one.path and _name(one.node) not in _OF_PAIRS:
            return None
        if _reduced(one.node) is not None:
            return one
        inner = _inside(one.node)
        one = one.part(inner) if inner is not None else next(steps_of(one), None)
    return None


def _name(node: ast.AST) -> str:
    """Return the name of the function or method that a call is of; empty of another expression."""
    return str(getattr(getattr(node, "func", None), "attr", ""))


def _inside(node: ast.expr) -> ast.expr | None:
    """Return the tensor of which an expression computes each element by itself."""
    match node:
        case ast.Attribute(value=base, attr="values" | "indices") if _name(base) in _OF_PAIRS:
            return base
        case ast.Subscript(value=base, slice=ast.Constant(value=0 | 1)) if _name(base) in _OF_PAIRS:
            return base
        case ast.Call(func=ast.Attribute(value=ast.Name("torch"), attr=attr), args=[base, *rest]):
            pass
        case ast.Call(func=ast.Attribute(value=base, attr=attr), args=rest):
            pass
        case ast.BinOp(left=base, right=ast.Constant()):
            return base
        case ast.BinOp(left=ast.Constant(), right=base):
            return base
        case _:
            return None
    is_plain = all(isinstance(one, ast.Constant | ast.UnaryOp) for one in rest)
    return base if attr in _BY_ELEMENT and is_plain else None


def _reduced(node: ast.expr) -> tuple[ast.expr, list[int]] | None:
    """Return what a call reduces, and the dimensions that it does not keep."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=attr), args=args, keywords=keywords):
            pass
        case _:
            return None
    place = _PLACES.get(attr)
    is_function = ast.unparse(owner) in ("torch", "torch.linalg")
    base = args[0] if is_function and args else owner
    given = args[1:] if is_function else args
    named = {one.arg: one.value for one in keywords}
    # A call with more arguments may say keepdim by its place.
    if place is None or len(given) > place + 1 or {"keepdim", "keepdims", None} & set(named):
        return None
    if is_function and not args:
        return None
    wanted = named.get("dim") or (given[place] if len(given) > place else None)
    dims = _numbers(wanted)
    return (base, dims) if dims else None


def _numbers(node: ast.expr | None) -> list[int]:
    """Return the numbers that stand in the source; none where it is no number or tuple of these."""
    try:
        value = ast.literal_eval(node) if node is not None else ()
    except ValueError:
        return []
    values = list(value) if isinstance(value, tuple | list) else [value]
    return values if all(type(one) is int for one in values) else []
