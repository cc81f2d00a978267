"""Number the call of a module that failed, of several, from the source of what calls it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from torchtap.core.source_files import is_of_library
from torchtap.core.text import plural
from torchtap.core.torch_nodes import TURNS
from torchtap.core.user_functions import code_of
from torchtap.failures.assignments import (
    Block,
    blocks_at,
    is_assigned_in_loop,
    names_in,
)
from torchtap.failures.failure import Failure
from torchtap.failures.graph_reading import nodes_of, parameters_at
from torchtap.failures.traceback_frame import LOOPS, MISSING, TracebackFrame

_ONE_NODE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)
"""Modules whose calls each make one node of the graph that takes their weight."""
_PARTS = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension, ast.ListComp, ast.GeneratorExp)
"""Expressions of which a part may run not at all, or several times."""
_EITHER = {"body": "orelse", "orelse": "body"}


def which_call(failure: Failure) -> str:
    """Return which call of the running module failed, of several; empty where it is not known.

    Calls may stand inside each other: the innermost that is one of several is told. Only lines that
    ran in any case, and loops that count, are certain enough.
    """
    depth = -1 if failure.running is None else failure.running.depth
    for frame in reversed(failure.frames[: depth + 1]):
        caller = frame.module
        node = None if frame.is_torch or caller is None else frame.expression
        called = frame.value_of(node.func) if isinstance(node, ast.Call) else None
        if not isinstance(node, ast.Call) or not isinstance(called, nn.Module):
            continue
        numbered = _call_number(frame, node, called)
        if numbered is None:
            break
        number, is_followed = numbered
        if number > 1 or is_followed:
            inside = f"inside {failure.names.module(called)}, in its"
            whose = "its" if called is failure.module else inside
            of = failure.names.module(caller).removesuffix(" itself")
            return f"{whose} {ordinal(number)} call in this forward of {of}"
    num_calls = _num_calls_in_input(failure)
    return f"on a result of {plural(num_calls, 'earlier call')} of it" if num_calls else ""


def ordinal(number: int) -> str:
    """Return ``2nd`` of 2."""
    teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _num_calls_in_input(failure: Failure) -> int:
    """Return how many calls of the running module are in the graphs of the failed operands."""
    module = failure.module
    if type(module) not in _ONE_NODE:
        return 0
    weight = vars(module).get("_parameters", {}).get("weight")
    computed = [tensor.value for tensor in failure.tensors if tensor.value.grad_fn is not None]
    if weight is None or not computed:  # It has no weight while it is being made.
        return 0
    return sum(
        any(one is weight for one in parameters_at(node))
        for node in nodes_of(computed)
        if node.name() not in TURNS  # A view of the weight: what takes that counts.
    )


def _call_number(
    frame: TracebackFrame, here: ast.Call, module: nn.Module
) -> tuple[int, bool] | None:
    """Return the number of the module's call in this run of the function, and if others follow.

    ``None`` where the source does not tell.
    """
    function = frame.function
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    around = blocks_at(function, frame.line)
    loops = [node for node, field in around if isinstance(node, LOOPS) and field == "body"]
    if len(loops) > 1 or any(field == "handlers" for _, field in around):
        return None
    rounds = _num_rounds(frame, loops[0]) if loops else 0
    if rounds is None or is_assigned_in_loop(frame, names_in(here.func)):
        return None  # Of the latter, another module is called in each round.
    num_before = num_each_round = 0
    is_followed = bool(loops)
    for call in _calls(function):
        inside = any(_holds_node(one, call) for loop in loops for one in loop.body)
        is_earlier = call is not here and _end(call) <= _end(here)
        has_run = _has_run(function, call, around) if inside or is_earlier else False
        is_of_it = _is_of(frame, call, module)
        if has_run is False:
            is_followed |= is_of_it is True and call is not here and not is_earlier
        elif is_of_it is None or (is_of_it and has_run is None):
            return None  # It may have been called there.
        elif is_of_it:
            num_each_round += inside
            num_before += is_earlier
    return num_before + rounds * num_each_round + 1, is_followed


@lru_cache(maxsize=256)
def _calls(function: ast.AST) -> tuple[ast.Call, ...]:
    """Return the calls that a function makes itself."""
    todo = list(getattr(function, "body", ()))
    for node in todo:  # Grows as it goes.
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            todo += ast.iter_child_nodes(node)
    return tuple(node for node in todo if isinstance(node, ast.Call))


def _is_of(frame: TracebackFrame, call: ast.Call, module: nn.Module) -> bool | None:
    """Return whether a call is one of the module; ``None`` if it may lead to one or is unknown."""
    called = frame.value_of(call.func)
    if called is module:
        return True
    if called is MISSING:
        return _is_method_without_modules(frame, call.func)
    if isinstance(called, nn.Module):
        return None if _holds(called, module) else False
    given = (*call.args, *(keyword.value for keyword in call.keywords))
    is_handed = any(_holds(frame.value_of(one), module) for one in given)
    is_open = callable(called) and _is_of_program(inspect.unwrap(called))
    return None if is_handed or is_open else False


def _holds(value: object, module: nn.Module) -> bool:
    return isinstance(value, nn.Module) and any(one is module for one in value.modules())


def _is_method_without_modules(frame: TracebackFrame, func: ast.AST) -> bool | None:
    """Return ``False`` of an unknown callee that calls no module (a tensor's), else ``None``."""
    if not isinstance(func, ast.Attribute):
        return None
    owner = frame.value_of(func.value)
    if owner is MISSING:
        return False if hasattr(Tensor, func.attr) else None
    if isinstance(owner, Tensor):
        return False
    kind = owner if isinstance(owner, type) else type(owner)
    method: Any = inspect.getattr_static(kind, func.attr, None)
    is_unknown = method is None or isinstance(owner, nn.Module) or _is_of_program(method)
    return None if is_unknown else False


def _is_of_program(function: object) -> bool:
    code = code_of(function)
    return code is not None and not is_of_library(code.co_filename)


def _holds_node(outer: ast.AST, node: ast.AST) -> bool:
    return any(inner is node for inner in ast.walk(outer))


def _end(node: ast.Call) -> tuple[int, int]:
    """Return where a call ends: of calls inside each other, the inner one runs first."""
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _has_run(function: ast.AST, call: ast.Call, around: Sequence[Block]) -> bool | None:
    """Return whether a call ran before, each time that the blocks around the failing line did."""
    others = [block for block in blocks_at(function, call.lineno) if block not in around]
    for node, field in others:
        ends = isinstance(getattr(node, field)[-1], ast.Return | ast.Raise)
        if ends or (node, _EITHER.get(field, "")) in around:
            return False  # Nothing runs after a branch that returns, or it is the other branch.
    parts = (one for one in ast.walk(function) if isinstance(one, _PARTS))
    return None if others or any(_holds_node(part, call) for part in parts) else True


def _num_rounds(frame: TracebackFrame, loop: ast.AST) -> int | None:
    """Return how many rounds of a ``range`` or ``enumerate`` loop are done, and none left early."""
    called = loop.iter if isinstance(loop, ast.For) else None
    name = getattr(called.func, "id", "") if isinstance(called, ast.Call) else ""
    if not isinstance(loop, ast.For) or not isinstance(called, ast.Call):
        return None
    given = [frame.value_of(arg) for arg in called.args]
    target, start, step = loop.target, 0, 1
    if name == "enumerate" and isinstance(target, ast.Tuple | ast.List):
        target = target.elts[0]
        given += [frame.value_of(keyword.value) for keyword in called.keywords]
        start = given[1] if len(given) > 1 else 0
    elif name == "range":
        start, step = given[0] if len(given) > 1 else 0, given[2] if len(given) > 2 else 1
    else:
        return None
    if not isinstance(target, ast.Name) or any(_skips(one, target.id) for one in loop.body):
        return None
    value = frame.names.get(target.id, MISSING)
    if any(type(one) is not int for one in (value, start, step)) or not step:
        return None
    return int((value - start) // step)


def _skips(statement: ast.AST, name: str) -> bool:
    """Return whether a statement leaves a round of a loop, or assigns its name anew."""
    return any(
        isinstance(node, ast.Continue)
        or (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store))
        for node in ast.walk(statement)
    )
