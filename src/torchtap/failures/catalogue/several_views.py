"""A write in place into one of several views that one function made of a tensor."""

from __future__ import annotations

import ast
import re
from typing import Any, NamedTuple

from torch import Tensor

from torchtap.failures.assignments import looped_over
from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.operands import Operand
from torchtap.failures.out_of_place import (
    called_out_of_place,
    is_read_below,
    out_of_place,
    statement_of,
)
from torchtap.failures.parsed_source import replaced, written
from torchtap.failures.situation_row import Situation
from torchtap.failures.traceback_frame import TracebackFrame

_BY_INDEX = "Take the view by an index (x[0], x[:, :4]), which can be written into."


class _Loop(NamedTuple):
    """A loop that took a tensor apart.

    Attributes:
        whole: the tensor, as the loop writes it.
        item: the name that each part has.
        value: the tensor itself; ``None`` if it is a part of a tensor that the loop takes.
        frame: in which the loop runs.
    """

    whole: str
    item: str
    value: Tensor | None
    frame: TracebackFrame


def _several(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = next(iter(failure.tensors or failure.operands))
    name = failure.name_of(operand)
    base = name.partition("[")[0]
    loop = _loop_of(failure, operand)
    maker = f"a loop over {loop.whole}{_state(failure, loop)}" if loop else found["node"].lower()
    return Explanation(
        f"{base} is one of several views that {maker} made of one "
        "tensor, and such a view cannot be written into in place.",
        _ways(failure, operand, loop, name),
        failure.details(),
    )


def _state(failure: Failure, loop: _Loop) -> str:
    """The parameter that is taken apart; empty of other tensors."""
    state = None if loop.value is None else failure.names.state(loop.value)
    return "" if state is None else f", the parameter {state.name},"


def _ways(failure: Failure, operand: Operand, loop: _Loop | None, name: str) -> tuple[str, ...]:
    frame = failure.frames[operand.depth]
    base = name.partition("[")[0]
    statement = statement_of(frame)
    called = called_out_of_place(frame.expression)
    new = out_of_place(statement)
    if called and not new and not isinstance(statement, ast.Expr):
        return (f"Take what the call out of place returns: {called}.", _BY_INDEX)
    is_used = bool(new) and is_read_below(frame, base, frame.line)
    compute = f"Compute a new tensor in place of the write: {new}."
    if loop is None:
        if new:
            end = "" if is_used else " Hand it back to where it is read."
            return (compute + end, _BY_INDEX)
        # To assign to a part of it is a write too, and the operand is then the whole.
        if base != name or isinstance(statement, ast.Assign):
            return (f"Write into a clone: {replaced(base, 'clone()')} before the write.", _BY_INDEX)
        return (_BY_INDEX,)
    if loop.value is not None and loop.value.is_leaf and loop.value.requires_grad:
        return (
            f"If {loop.whole} itself is to stay as it is, change a copy, made before the loop: "
            f"{replaced(loop.whole, 'detach().clone()')}.",
            "If it is to be changed, as by an initialisation, put the loop inside torch.no_grad().",
        )
    index = _through_index(loop, name if frame is loop.frame else loop.item)
    whole = re.split(r"\W", loop.whole)[0]
    is_wanted = is_read_below(loop.frame, whole, _end_of_loop(loop))
    if is_used and not is_wanted:
        return (compute, index)
    rest = (
        f"Compute a list of new tensors in the loop, and torch.stack it in place of {loop.whole}."
    )
    return (index, rest)


def _through_index(loop: _Loop, name: str) -> str:
    part = f"{loop.whole}[i]{name.removeprefix(loop.item)}"
    return f"Write through an index: for i in range(len({loop.whole})), and {part} for {name}."


def _end_of_loop(loop: _Loop) -> int:
    """The last line of the loop, or the one that runs."""
    line = loop.frame.line
    loops = [
        one.end_lineno or line
        for one in ast.walk(loop.frame.function or ast.Module([], []))
        if isinstance(one, ast.For) and one.lineno <= line <= (one.end_lineno or line)
    ]
    return max(loops, default=line)


def _loop_of(failure: Failure, operand: Operand) -> _Loop | None:
    """The loop over a tensor whose item is written into, here or in a function that called."""
    base = operand.text.partition("[")[0]
    value: Any = failure.frames[operand.depth].names.get(base)
    for frame in reversed(failure.frames[: operand.depth + 1]):
        for item in [key for key, one in frame.own_names.items() if one is value]:
            whole = looped_over(frame, item)
            if whole is None:
                continue
            held = frame.value_of(whole)
            is_part = isinstance(whole, ast.Subscript) and isinstance(
                frame.value_of(whole.value), Tensor
            )
            if isinstance(held, Tensor) or is_part:
                tensor = held if isinstance(held, Tensor) else None
                return _Loop(written(whole, frame.file), item, tensor, frame)
    return None


SITUATIONS: dict[str, Situation] = {"one of several views": _several}
