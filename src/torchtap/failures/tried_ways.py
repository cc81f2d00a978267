"""Ways out that raise again, found by trying them: on zeros in place of the program's tensors.

A way out that holds an expression, such as ``x.unsqueeze(0)``, is put into the line that failed,
and the line, with those that follow it, is computed by :mod:`stand_ins`. The trial counts only if
the line as it stands is refused there, too.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

from torch import nn

from torchtap.core.torch_private import num_dispatch_modes
from torchtap.failures.failure import Failure
from torchtap.failures.followed_lines import is_refused_below
from torchtap.failures.operands import parts_of_expression
from torchtap.failures.parsed_source import expression_of, last_name
from torchtap.failures.stand_ins import Refused, StandIns, nothing_changed
from torchtap.failures.traceback_frame import TracebackFrame

_OR = re.compile(r",? or (?=\S*[(\[])|; or |; ")
"""Stands between the expressions of a way out, of which one is to be taken."""
_AND = re.compile(r",? and (?=\S+ = )| against ")
"""Stands between changes that belong together."""
_REASON = re.compile(r",? (?:which|so that|as|that|in place of|for) (?:(?!\w[(\[=]).)*")
"""Stands behind an expression: why, or what it replaces, and no other expression or argument."""
_MOST_READINGS = 12
_SAME = re.compile(r"nn\.\w+\(\) before the module")
"""Says the expression before it as a layer."""
_ASSIGNED = re.compile(r"([\w.\[\]']+) = (.*)")
_RESHAPES = frozenset(
    {
        *("expand", "expand_as", "flatten", "movedim", "permute", "repeat", "reshape", "squeeze"),
        *("t", "transpose", "unflatten", "unsqueeze", "view", "view_as"),
    }
)
_SIGNS = (ast.BinOp, ast.Compare, ast.UnaryOp)
_MEANT = (ast.Call, ast.Subscript, ast.BinOp, ast.Attribute, ast.Compare)


class Change(NamedTuple):
    """A change of the program that a way out proposes.

    Attributes:
        instead: nodes of the failing line, and the expression that each gets.
        layers: a layer, and the numbers that it is made with.
    """

    instead: tuple[tuple[ast.expr, ast.expr], ...] = ()
    layers: tuple[tuple[nn.Module, tuple[Any, ...]], ...] = ()

    def with_(self, other: Change) -> Change:
        """Return both changes as one."""
        return Change(self.instead + other.instead, self.layers + other.layers)

    def values(self, failure: Failure, frame: TracebackFrame) -> StandIns:
        """Return the values of the failing frame in the changed program."""
        instead: dict[int, Any] = {id(node): other for node, other in self.instead}
        inner = failure.frames[frame.depth + 1 : frame.depth + 2]
        if inner and inner[0].module is not None and isinstance(frame.expression, ast.Call):
            instead[id(frame.expression.func)] = inner[0].module  # Also one that the line makes.
        layers = {id(layer): numbers for layer, numbers in self.layers}
        return StandIns(frame, instead, layers)


def without_refused(failure: Failure, ways: Sequence[str]) -> tuple[str, ...]:
    """Return the ways out without those that PyTorch refuses again.

    One is left out if each of its expressions is refused on the line that failed. If another way
    out passes that line, one that is refused on a line below is left out, too.
    """
    frame = _frame_to_try(failure)
    changes = [] if frame is None else [changes_of(way, frame) for way in ways]
    if frame is None or not any(changes):
        return tuple(ways)
    with nothing_changed():
        if _tried(failure, frame, Change()) != "refused":
            return tuple(ways)
        outcomes = [{_tried(failure, frame, one) for one in each} for each in changes]
    refused = {"refused"}
    if any("passes" in each for each in outcomes):
        refused.add("refused below")
    tried = zip(ways, outcomes, strict=True)
    return tuple(way for way, each in tried if not each or not each <= refused)


def _frame_to_try(failure: Failure) -> TracebackFrame | None:
    """Return the frame of the line that PyTorch refused; ``None`` where a trial says nothing."""
    frame, error = failure.user, failure.error
    is_of_sizes = isinstance(error, RuntimeError | ValueError | IndexError | AssertionError)
    if frame is None or not is_of_sizes or not frame.is_user or num_dispatch_modes():
        return None
    below = failure.frames[frame.depth :]
    is_forward = isinstance(frame.expression, ast.expr) and not frame.raises_itself
    return frame if is_forward and not any(one.is_engine for one in below) else None


def changes_of(way: str, frame: TracebackFrame) -> list[Change]:
    """Return the changes that a way out may stand for.

    Where it leaves open in whose place an expression is to stand, each place is one of them. None
    is returned unless each part of the way out can be read as one.
    """
    found: list[Change] = []
    for text in _OR.split(_without_condition(way, frame.expression)):
        if found and _SAME.fullmatch(text.strip()):
            continue
        parts = [_readings(part.strip(), frame) for part in _AND.split(text)]
        combined = itertools.islice(itertools.product(*parts), _MOST_READINGS)
        changes = [functools.reduce(Change.with_, one) for one in combined]
        if not changes:
            return []
        found += changes
    return found


def _without_condition(way: str, line: Any) -> str:
    """Return what stands behind the condition of a way out, up to the end of the sentence.

    Empty where a change may stand before it: code that is no part of the line.
    """
    sentence = re.split(r"\.(?:\s+(?=[A-Z])|$)", way)[0]
    condition, _, rest = sentence.partition(": ")
    written_there = ast.unparse(line)
    is_condition = all(one in written_there for one in re.findall(r"[\w.]+[(\[]", condition))
    return rest if is_condition else ""


def _readings(text: str, frame: TracebackFrame) -> list[Change]:
    """Return the changes that an expression or an assignment may stand for; none if not known."""
    assigned = _ASSIGNED.fullmatch(text)
    target, value = assigned.groups() if assigned is not None else ("", text)
    tree = expression_of(value) or expression_of(_REASON.sub("", value))
    if not isinstance(tree, _MEANT):
        return []
    place = expression_of(target) if target else None
    layer = frame.value_of(place) if place is not None else None
    if isinstance(layer, nn.Module):
        return _refitted(layer, tree)
    places = _places(tree, place, frame.expression)
    return [Change(tuple((node, tree) for node in nodes)) for nodes in places]


def _refitted(layer: nn.Module, made: ast.expr) -> list[Change]:
    """Return the change that makes a layer anew, of the same class and with other numbers."""
    if not isinstance(made, ast.Call) or last_name(made.func) != type(layer).__name__:
        return []
    given = [one.value if isinstance(one, ast.Constant) else None for one in made.args]
    return [] if made.keywords or None in given else [Change((), ((layer, tuple(given)),))]


def _places(tree: ast.expr, place: ast.expr | None, line: Any) -> list[list[ast.expr]]:
    """Return the nodes of the failing expression in whose place an expression may stand.

    It is made of one of them, and may stand for that, or for what the line makes of that: as
    ``x.sum(1, keepdim=True)`` stands for ``x.sum(1)`` and not for ``x``.
    """
    inside = [one for one in ast.walk(line) if isinstance(one, ast.expr)]
    if place is not None:
        found = [one for one in inside if _same(one, place)]
        return [found] if found else []
    for part in itertools.islice(_roots(tree), 1, None):
        found = [one for one in inside if _same(one, part)]
        if found:
            around = [one for one in inside if _is_made_of(one, found, tree, line)]
            whole = [line] if _holds_two(tree, line) else []
            several = [found] if len(found) > 1 else []
            return several + [[one] for one in {*found, *around, *whole}]
    return []


def _is_made_of(one: ast.expr, found: list[ast.expr], tree: ast.expr, line: ast.expr) -> bool:
    """Return whether an expression may stand for a part of the line, which is made of its operand.

    The result of a function, or of the line itself, is not replaced, but by a call of the same
    function, or where the line only gives its operand another shape.
    """
    steps = list(itertools.takewhile(lambda node: node not in found, _roots(one)))
    called = {last_name(node.func) for node in _roots(tree) if isinstance(node, ast.Call)}
    functions = {last_name(node.func) for node in steps if _is_function(node)}
    if one is line and isinstance(line, ast.Call) and last_name(line.func) not in _RESHAPES:
        functions.add(last_name(line.func))
    is_made = any(node in found for node in _roots(one))
    return is_made and functions <= called and not any(isinstance(one, _SIGNS) for one in steps)


def _holds_two(tree: ast.expr, line: ast.expr) -> bool:
    """Return whether an expression holds two operands of a line, in whose place it then stands."""
    operands = [
        part
        for one in parts_of_expression(line)
        for part in (one.elts if isinstance(one, ast.List | ast.Tuple) else [one])
        if not isinstance(part, ast.Constant)
    ]
    inside = list(ast.walk(tree))
    return sum(any(_same(one, part) for one in inside) for part in operands) > 1


def _roots(node: ast.expr | None) -> Iterator[ast.expr]:
    """Yield an expression, what it is made of, what that is made of, and so on."""
    while node is not None:
        yield node
        match node:
            case ast.Call(args=[first, *_]) if _is_function(node):
                node = first
            case ast.Call(func=ast.Attribute(value=base)):
                node = base
            case ast.Attribute(value=base) | ast.Subscript(value=base):
                node = base
            case ast.BinOp(left=base) | ast.Compare(left=base) | ast.UnaryOp(operand=base):
                node = base
            case _:
                node = None


def _is_function(node: ast.expr) -> TypeGuard[ast.Call]:
    """Return whether an expression calls a function by ``F.`` or ``torch.``, and no method."""
    func = node.func if isinstance(node, ast.Call) else None
    return isinstance(func, ast.Attribute) and last_name(func.value) in ("F", "functional", "torch")


def _same(one: ast.AST, other: ast.AST) -> bool:
    return type(one) is type(other) and ast.dump(one) == ast.dump(other)


def _is_hidden(change: Change, values: StandIns, line: Any) -> bool:
    """Return whether a change stands in what the line calls, in whose place its module is taken."""
    if not isinstance(line, ast.Call) or id(line.func) not in values.instead:
        return False
    callee = {id(one) for one in ast.walk(line.func)}
    return any(id(node) in callee for node, _ in change.instead)


def _tried(failure: Failure, frame: TracebackFrame, change: Change) -> str:
    """Return what comes of a change: ``refused``, ``refused below``, ``passes`` or ``unknown``."""
    line: Any = frame.expression
    values = change.values(failure, frame)
    if _is_hidden(change, values, line):
        return "unknown"
    try:
        value = values.of(line)
    except Refused:
        return "refused"
    except Exception:  # noqa: BLE001 - an expression of another kind than are computed here
        return "unknown"
    # The lines below have the change as well, or do without it.
    readings: list[dict[str, ast.expr]] = [{}]
    readings += [{node.id: tree} for node, tree in change.instead if isinstance(node, ast.Name)]
    try:
        for reading in readings:
            values = change.values(failure, frame)
            values.names.update({name: values.of(tree) for name, tree in reading.items()})
            values.instead = {id(line): value}
            if not is_refused_below(failure, frame, values):
                return "passes"
    except Exception:  # noqa: BLE001
        return "passes"
    return "refused below"
