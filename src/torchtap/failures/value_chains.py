"""Values of an exception, followed to where they were made or given, as words of a note."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchtap.core.source_files import shown_file
from torchtap.failures.failure import Failure
from torchtap.failures.followed_values import end_of, steps_of
from torchtap.failures.operands import Operand, parts_of_expression, shape_text
from torchtap.failures.scopes import Expression, given_to, scope_of
from torchtap.failures.traceback_frame import MISSING, TracebackFrame

_MOST_CHARACTERS = 70
_MOST_ROWS = 3
_SHOWN = (bool, int, float, str, tuple)
"""Values that a note shows, beside tensors."""


def chain_of(failure: Failure, operand: Operand) -> list[Expression]:
    """Return the expressions that an operand came from, the nearest first; none if not known."""
    frame = failure.frames[operand.depth] if failure.frames else None
    name = failure.name_of(operand)
    # PyTorch's own name of it says nothing: the program's is the one to follow.
    for one in (frame, failure.user):
        found = one and _expression(failure, one, operand.text if one is frame else name)
        if found:
            return list(steps_of(found))
    return []


def source_of(failure: Failure, operand: Operand) -> str:
    """Return where an operand was made, as ``train.py:26: torch.rand(4, 3)``; empty if not known.

    Empty, too, where that is the line that failed.
    """
    chain = chain_of(failure, operand)
    user = failure.user
    is_here = not chain or (user is not None and chain[-1].line == user.line)
    return "" if is_here else _placed(chain[-1])


class Made(NamedTuple):
    """The call that made a module, in the program.

    Attributes:
        call: the expression.
        kind: class of the module.
    """

    call: Expression
    kind: type

    @property
    def text(self) -> str:
        """Return it as ``nn.Linear(512, 10) of model.py:12``."""
        return f"{_short(self.call.text)} of {_place(self.call)}"

    def given(self, argument: str) -> list[Expression]:
        """Return the expressions that an argument came from, the call's own first."""
        names = tuple(inspect.signature(self.kind).parameters)
        first = given_to(self.call, names, argument)
        return [] if first is None else [first, *steps_of(first)]


def made_of(failure: Failure, module: nn.Module | None) -> Made | None:
    """Return the call of the program that made a module; ``None`` where that is not certain."""
    text = "" if module is None else failure.names.variable(module)
    for frame in reversed(failure.frames):
        found = _expression(failure, frame, text) if frame.is_user and text else None
        if found is None or frame.value_of(found.node) is not module:
            continue
        end = end_of(found)
        if isinstance(end.node, ast.Call) and not end.path:
            kind = end.scope.value_of(end.node.func)
            if kind is type(module):
                return Made(end, kind)
    return None


def rows_of(failure: Failure, said: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of a note that say where values were given, beside what it says already.

    Args:
        failure: the exception.
        said: the other rows.
    """
    count = 0
    for label, text, place in _told(failure):
        if count < _MOST_ROWS and f"{place}:" not in f"{said}:" and place not in said.split():
            count += 1
            yield label, text


def _told(failure: Failure) -> Iterator[tuple[str, str, str]]:
    """Yield label, text and last place of each chain."""
    made = made_of(failure, failure.module)
    if made is not None and made.kind.__module__.startswith("torch.nn"):
        yield "layer", f"made by {made.text}", _place(made.call)
        for argument in _sizes(made.call):
            yield from _row(argument)
    frame = failure.user
    for node in parts_of_expression(frame.expression) if frame is not None else ():
        if frame is not None and isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            yield from _row(Expression(node, scope_of(frame, failure.frames)))


def _sizes(call: Expression) -> Iterator[Expression]:
    node = call.node
    values = (
        [*node.args, *(one.value for one in node.keywords)] if isinstance(node, ast.Call) else []
    )
    for one in values:
        if isinstance(one, ast.Name | ast.Attribute | ast.Subscript):
            yield call.part(one)


def _row(one: Expression) -> Iterator[tuple[str, str, str]]:
    """Yield the row of one chain that leaves the function, if it tells where that ended."""
    value = one.scope.value_of(one.node)
    if isinstance(value, nn.Module | type) or inspect.ismodule(value) or callable(value):
        return
    steps = [step for step in steps_of(one) if not _is_empty(step.node)]
    # Items of a display would read as its last element's.
    steps = [step for step in steps if not (step.path and isinstance(step.node, ast.Tuple))]
    told = list(_places(one, steps))
    if not told:
        return
    texts = [f"{_short(step.text)} of {_place(step)}{_facts(step, value)}" for step in told]
    yield "given", f"{_short(one.text)} is {', which is '.join(texts)}", _place(told[-1])


def _places(one: Expression, steps: list[Expression]) -> Iterator[Expression]:
    """Yield the first step in another function, and the last one."""
    away = [step for step in steps if step.scope.tree is not one.scope.tree]
    if not away:
        return
    last = away[-1]
    first = next((step for step in away if not step.path), last)
    # A name that stays says nothing, and a value all that its name would.
    is_plain = isinstance(last.node, ast.Constant) and first.line == last.line
    if first is not last and first.text != one.text and not is_plain:
        yield first
    yield last


def _is_empty(node: ast.expr) -> bool:
    """Return whether an expression is a list or dict that is filled below."""
    return isinstance(node, ast.List | ast.Dict) and not ast.unparse(node).strip("[]{} ")


def _facts(step: Expression, value: Any) -> str:
    own = step.value
    own = value if own is MISSING and type(value) is int else own
    if isinstance(step.node, ast.Constant) or own is MISSING:
        return ""
    if isinstance(own, Tensor):
        return f" ({shape_text(own)})"
    return f" ({own!r})" if type(own) in _SHOWN and len(repr(own)) < 30 else ""


def _expression(failure: Failure, frame: TracebackFrame, text: str) -> Expression | None:
    """Return a text as an expression that the line of a frame reads."""
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return Expression(node, scope_of(frame, failure.frames), (), frame.line)


def _place(one: Expression) -> str:
    return f"{shown_file(one.scope.file)}:{one.line}"


def _placed(one: Expression) -> str:
    return f"{_place(one)}: {_short(one.text)}"


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
