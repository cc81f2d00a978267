"""Number the call of a module that failed, of several, from the source of what calls it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from torchtap.core.torch_nodes import TURNS
from torchtap.core.user_functions import code_of
from torchtap.failures.assignments import blocks_at
from torchtap.failures.frame import MISSING, Frame, is_of_library
from torchtap.failures.graph_reading import parameters_at
from torchtap.failures.operands import operands_of

_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_ONE_NODE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)
"""Modules whose calls each make one node of the graph that takes their weight."""
_MOST_NODES = 10_000


class CalledBefore:
    """The calls of a module before the one that failed.

    Attributes:
        module: that was called.
        caller: the module whose forward calls it.
        number: which call of this forward of the caller it is, from 1.
    """

    __slots__ = ("caller", "module", "number")

    def __init__(self, module: nn.Module, caller: nn.Module, number: int) -> None:
        self.module = module
        self.caller = caller
        self.number = number


def numbered_call(frames: Sequence[Frame], depth: int | None) -> CalledBefore | None:
    """The innermost call of a module on the way to a frame that is one of several, if it is known.

    Only what is certain is told: lines that ran in any case, and loops that count.

    Args:
        frames: of the exception, outermost first.
        depth: number of the frame of the innermost module.
    """
    for number in range(depth if depth is not None else -1, -1, -1):
        frame = frames[number]
        caller = frame.module
        node = None if frame.is_torch or caller is None else frame.expression
        if caller is None or not isinstance(node, ast.Call):
            continue
        called = frame.value_of(node.func)
        if not isinstance(called, nn.Module):
            continue
        found = _number(frame, node, called)
        if found is None:
            return None
        if found[0] > 1 or found[1]:
            return CalledBefore(called, caller, found[0])
    return None


def ordinal(number: int) -> str:
    """``2nd`` of 2."""
    teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def num_in_input(module: nn.Module, frames: Sequence[Frame]) -> int:
    """Return how many calls of a module are in the graphs of the operands that one failed with."""
    if type(module) not in _ONE_NODE:
        return 0
    weight = vars(module).get("_parameters", {}).get("weight")
    if weight is None:  # Also of a module that is being made.
        return 0
    given = (one.value for one in operands_of(frames))
    roots = [one.grad_fn for one in given if isinstance(one, Tensor)]
    todo = [node for node in roots if node is not None]
    seen, found = set(todo), 0
    while todo and len(seen) < _MOST_NODES:
        node = todo.pop()
        is_view = node.name() in TURNS
        found += not is_view and any(one is weight for one in parameters_at(node))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
    return found


def _number(frame: Frame, here: ast.Call, module: nn.Module) -> tuple[int, bool] | None:
    """Return the number of the module's call in this run of the function, and if others follow.

    ``None`` where the source does not tell.
    """
    function = frame.function
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    around = blocks_at(function, frame.line)
    loops = [node for node, field in around if isinstance(node, _LOOPS) and field == "body"]
    if len(loops) > 1 or any(field == "handlers" for _, field in around):
        return None
    rounds = _round(frame, loops[0]) if loops else 0
    if rounds is None:
        return None
    before = each = 0
    is_followed = bool(loops)
    for call in _calls(function):
        inside = bool(loops) and _stands_in(call, loops[0])
        is_earlier = call is not here and _end(call) <= _end(here)
        has_run = _has_run(function, call, around) if inside or is_earlier else False
        verdict = _is_of(frame, call, module)
        if has_run is False:
            is_followed = is_followed or (verdict is True and call is not here and not is_earlier)
        elif verdict is None or (verdict and has_run is None):
            return None  # It may have been called there.
        elif verdict:
            each += inside
            before += is_earlier
    return before + rounds * each + 1, is_followed


@lru_cache(maxsize=256)
def _calls(function: ast.AST) -> tuple[ast.Call, ...]:
    """The calls that a function makes itself."""
    todo = list(getattr(function, "body", ()))
    for node in todo:  # Grows as it goes.
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            todo += ast.iter_child_nodes(node)
    return tuple(node for node in todo if isinstance(node, ast.Call))


def _is_of(frame: Frame, call: ast.Call, module: nn.Module) -> bool | None:
    """Return whether a call is one of the module; ``None`` if it may lead to one or is unknown."""
    called = frame.value_of(call.func)
    if called is module:
        return True
    if isinstance(called, nn.Module):
        return None if any(one is module for one in called.modules()) else False
    if called is MISSING:
        return _may_lead_on(frame, call.func)
    code = code_of(inspect.unwrap(called) if callable(called) else None)
    is_handed = any(_holds(frame.value_of(one), module) for one in _arguments(call))
    return (
        None if is_handed or (code is not None and not is_of_library(code.co_filename)) else False
    )


def _may_lead_on(frame: Frame, func: ast.AST) -> bool | None:
    """Return ``False`` if an unknown callee calls no module (a tensor's method), else ``None``."""
    if not isinstance(func, ast.Attribute):
        return None
    owner = frame.value_of(func.value)
    if owner is MISSING:
        return False if hasattr(Tensor, func.attr) else None
    if isinstance(owner, Tensor):
        return False
    kind = owner if isinstance(owner, type) else type(owner)
    method: Any = inspect.getattr_static(kind, func.attr, None)
    code = code_of(method)
    is_plain = method is not None and (code is None or is_of_library(code.co_filename))
    return False if is_plain and not isinstance(owner, nn.Module) else None


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(one.value for one in call.keywords)]


def _holds(value: Any, module: nn.Module) -> bool:
    return isinstance(value, nn.Module) and any(one is module for one in value.modules())


def _end(node: ast.Call) -> tuple[int, int]:
    """Return where a call ends: of calls inside each other, the inner one runs first."""
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _stands_in(call: ast.Call, loop: ast.AST) -> bool:
    return any(node is call for one in getattr(loop, "body", ()) for node in ast.walk(one))


def _has_run(
    function: ast.AST, call: ast.Call, around: Sequence[tuple[ast.AST, str]]
) -> bool | None:
    """Return whether a call ran before, each time that the blocks around the failing line did."""
    here = {(id(node), field) for node, field in around}
    others = [
        (node, field)
        for node, field in blocks_at(function, call.lineno)
        if (id(node), field) not in here
    ]
    if any(_leaves(getattr(node, field)) for node, field in others):
        return False  # A branch that ends the function: nothing would have run after it.
    if any((id(node), other) in here for node, field in others for other in _EITHER.get(field, ())):
        return False  # The other branch of an if.
    is_part = any(
        isinstance(one, _PARTS) and any(inner is call for inner in ast.walk(one))
        for one in ast.walk(function)
    )
    return None if others or is_part else True


_PARTS = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension, ast.ListComp, ast.GeneratorExp)
"""Expressions of which a part may run not at all, or several times."""
_EITHER = {"body": ("orelse",), "orelse": ("body",)}


def _leaves(block: object) -> bool:
    return isinstance(block, list) and bool(block) and isinstance(block[-1], ast.Return | ast.Raise)


def _round(frame: Frame, loop: ast.AST) -> int | None:
    """Return how many rounds of a ``range`` or ``enumerate`` loop are done, and none left early."""
    if not isinstance(loop, ast.For) or _has(loop, ast.Continue):
        return None
    iterated, target = loop.iter, loop.target
    if not isinstance(iterated, ast.Call) or not isinstance(iterated.func, ast.Name):
        return None
    if iterated.func.id == "enumerate" and isinstance(target, ast.Tuple | ast.List):
        target = target.elts[0]
        first, step = 0, 1
        given = [*iterated.args[1:], *(one.value for one in iterated.keywords)]
        start = frame.value_of(given[0]) if given else 0
    elif iterated.func.id == "range":
        values = [frame.value_of(one) for one in iterated.args]
        start = values[0] if len(values) > 1 else 0
        first, step = 0, values[2] if len(values) > 2 else 1
    else:
        return None
    if not isinstance(target, ast.Name) or _is_assigned(loop, target.id):
        return None
    value = frame.names.get(target.id, MISSING)
    if any(type(one) is not int for one in (value, start, step)) or not step:
        return None
    return first + int((value - start) // step)


def _is_assigned(loop: ast.For, name: str) -> bool:
    """Return whether the body of a loop assigns a name again."""
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for one in loop.body
        for node in ast.walk(one)
    )


def _has(loop: ast.For, kind: type[ast.AST]) -> bool:
    return any(isinstance(node, kind) for one in loop.body for node in ast.walk(one))
