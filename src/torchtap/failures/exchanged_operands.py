"""A call of PyTorch whose arguments stand in another order than it takes them.

``torch.linalg.solve(b, A)``, ``x.gather(index, 1)`` and ``torch.cat(1, parts)`` are refused, and
would be taken with two arguments exchanged. PyTorch tells so itself, on its meta device: from
shapes and dtypes alone, without values and without code of the program.
"""

from __future__ import annotations

import ast
import copy
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtap.core.torch_private import num_dispatch_modes
from torchtap.failures.derived_shapes import on_meta
from torchtap.failures.failure import Failure
from torchtap.failures.traceback_frame import MISSING, TracebackFrame

_HOLDERS = (torch, torch.linalg, torch.fft, torch.special, torch.nn.functional)
_TURNED = frozenset({"matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "einsum", "tensordot"})
"""Functions of which the transposed operand is as likely as the other order."""
_LOSSES = ("loss", "cross_entropy", "divergence")
"""Parts of the names of functions of an output and a target, which take both for either at times:
the rows of losses say which is which, by the values."""
_DRAWN = ("rand", "dropout", "normal", "multinomial", "bernoulli", "poisson", "gumbel", "rrelu")
"""Parts of the names of functions that draw random numbers."""
_MOST_ARGUMENTS = 5
_PLAIN: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
}
"""Kinds of arguments -> the types that are of them."""


def exchanged_operands(failure: Failure) -> str:
    """Return the way out where a call is taken with two of its arguments exchanged; else empty."""
    frame = failure.user
    node = None if frame is None else frame.expression
    if frame is None or not isinstance(node, ast.Call) or num_dispatch_modes():
        return ""
    if not 2 <= len(node.args) <= _MOST_ARGUMENTS or not _is_plain(node):
        return ""
    by_kind = _by_kind(node, frame)
    if by_kind:
        return by_kind
    try:
        called, given, named = _on_meta(node, frame)
    except Exception:  # noqa: BLE001 - no function of PyTorch, or a value that is not known
        return ""
    if not _holds_tensor(given) or _is_taken(called, given, named):
        return ""
    for one, other in _pairs(given):
        order = list(range(len(given)))
        order[one], order[other] = other, one
        if _is_taken(called, [given[at] for at in order], named):
            return _way(node, order, (one, other))
    return ""


def _by_kind(node: ast.Call, frame: TracebackFrame) -> str:
    """Return the way out where two arguments are each of the kind that the other one is to be.

    ``nn.BatchNorm2d(0.8, 128)``: PyTorch writes the kinds of its own layers and methods.
    """
    kinds = _kinds_taken(node.func, frame)
    values = [frame.value_of(one) for one in node.args]
    for one, other in itertools.combinations(range(min(len(kinds), len(values))), 2):
        is_known = values[one] is not MISSING and values[other] is not MISSING
        is_wrong = is_known and not _is_of(values[one], kinds[one])
        turned = _is_of(values[one], kinds[other]) and _is_of(values[other], kinds[one])
        if is_wrong and turned:
            order = list(range(len(values)))
            order[one], order[other] = other, one
            return _way(node, order, (one, other))
    return ""


def _kinds_taken(func: ast.expr, frame: TracebackFrame) -> list[str]:
    """Return the kinds of a callable's arguments, as PyTorch writes them; none of any other's."""
    called = frame.value_of(func)
    if called is MISSING and isinstance(func, ast.Attribute):
        owner = frame.value_of(func.value)
        called = inspect.getattr_static(type(owner), func.attr, MISSING)
    if not str(getattr(called, "__module__", "")).startswith("torch."):
        return []
    try:
        taken = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):  # Of a function that is written in C.
        return []
    taken = taken[taken[:1] != [] and taken[0].name == "self" :]
    written = [one.annotation for one in taken]
    return [one if isinstance(one, str) else getattr(one, "__name__", str(one)) for one in written]


def _is_of(value: Any, kind: str) -> bool:
    """Return whether a value is of a kind; a kind that is not plain takes any but a text."""
    if kind in _PLAIN:
        return type(value) in _PLAIN[kind]
    return (value is None or isinstance(value, Tensor)) and "Tensor" in kind


def _is_plain(node: ast.Call) -> bool:
    """Return whether a call gives each argument by itself."""
    is_starred = any(isinstance(one, ast.Starred) for one in node.args)
    return not is_starred and all(one.arg is not None for one in node.keywords)


def _on_meta(
    node: ast.Call, frame: TracebackFrame
) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    """Return the function and the arguments of a call, with tensors on meta."""
    given = [on_meta(one, frame) for one in node.args]
    named = {str(one.arg): on_meta(one.value, frame) for one in node.keywords}
    func, function = node.func, frame.value_of(node.func)
    name = getattr(func, "attr", getattr(func, "id", ""))
    if name in _TURNED or any(part in name for part in (*_LOSSES, *_DRAWN, "set_")):
        raise TypeError
    if any(vars(holder).get(name) is function for holder in _HOLDERS):
        return function, given, named
    whole = on_meta(func.value, frame) if isinstance(func, ast.Attribute) else None
    if not isinstance(whole, Tensor) or name.endswith("_"):
        raise TypeError
    return getattr(whole, name), given, named


def _holds_tensor(given: Sequence[Any]) -> bool:
    inside = (part for one in given for part in (one if isinstance(one, list | tuple) else [one]))
    return any(isinstance(one, Tensor) for one in inside)


def _pairs(given: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Yield the places of two arguments that are not the same for PyTorch."""
    for one, other in itertools.combinations(range(len(given)), 2):
        if not (type(given[one]) in (int, bool) and type(given[other]) in (int, bool)):
            yield one, other


def _is_taken(called: Callable[..., Any], given: Sequence[Any], named: dict[str, Any]) -> bool:
    """Return whether PyTorch takes a call without complaint, as far as meta tells."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        try:
            called(*given, **named)
        except Exception:  # noqa: BLE001 - whatever PyTorch raises, it does not take the call
            return False
    return True


def _way(node: ast.Call, order: Sequence[int], pair: tuple[int, int]) -> str:
    first, second = (ast.unparse(node.args[at]) for at in pair)
    turned = copy.copy(node)
    turned.args = [node.args[at] for at in order]
    return (
        f"If {first} and {second} stand in each other's place, exchange them: "
        f"{ast.unparse(turned)}."
    )
