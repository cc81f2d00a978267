"""Calls of optimizers' steps in the running functions, and the parameters that they change."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from torch.optim import Optimizer

from torchtap.failures.parsed_source import written
from torchtap.failures.traceback_frame import TracebackFrame, is_inside, line_of


class Step(NamedTuple):
    """A call of a step that stands in a running function.

    Attributes:
        at: line and column of the call.
        text: the call alone.
        place: file, line and source.
        trained: the identities of the parameters that it changes.
    """

    at: tuple[int, int]
    text: str
    place: str
    trained: frozenset[int]


def steps_in(frame: TracebackFrame) -> Iterator[Step]:
    """Yield the steps of optimizers that are called in the function of a frame."""
    for node, func in _calls_of_steps(frame):
        # scaler.step(optimizer) steps the optimizer that it is given.
        for one in (func.value, *node.args[:1]):
            held = frame.value_of(one)
            if isinstance(held, Optimizer):
                yield _step(node, frame, held)
                break


def _calls_of_steps(frame: TracebackFrame) -> Iterator[tuple[ast.Call, ast.Attribute]]:
    """Yield the calls of step, and of methods such as the first_step of an optimizer of two."""
    for node in ast.walk(frame.function) if frame.function is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name == "step" or name.endswith("_step"):
                yield node, node.func


def steps_between(frame: TracebackFrame, after: tuple[int, int]) -> list[Step]:
    """Return the steps behind a place and before the running call; of its loop for ``(0, 0)``."""
    steps = list(steps_in(frame))
    if any(after):
        here = frame.expression
        last = (frame.line, here.col_offset if isinstance(here, ast.expr) else 0)
        return [one for one in steps if after < one.at < last]
    loop = frame.loop
    if loop is None:  # A function may be called again as a whole.
        return [] if frame.code.co_name == "<module>" else steps
    return [one for one in steps if is_inside(one.at[0], loop)]


def _step(node: ast.Call, frame: TracebackFrame, optimizer: Optimizer) -> Step:
    trained = (id(one) for group in optimizer.param_groups for one in group["params"])
    place, text = line_of(node, frame.file), written(node, frame.file)
    return Step((node.lineno, node.col_offset), text, place, frozenset(trained))
