"""Find the backward that went through a graph before, and the part that both go through.

Freed values cannot tell: the backward that failed has freed what it had passed. So the source says
which calls came before, and the graphs of the tensors that the frame still holds what they share.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchtap.core.user_functions import code_of
from torchtap.failures.assignments import assignments_of
from torchtap.failures.failure import Details, Failure
from torchtap.failures.graph_reading import FREED, Node, nodes_of, place_of_node, saved_by
from torchtap.failures.parsed_source import function_tree, written
from torchtap.failures.traceback_frame import TracebackFrame, line_of

ABOVE, BEFORE, KEPT, LIST, OUTSIDE, STATE = "above", "before", "kept", "list", "outside", "state"
_MOST_NAMED = 3


class Earlier(NamedTuple):
    """A call of a backward in a running function: its line, and what it begins at, if known."""

    at: tuple[int, int]
    text: str
    tensor: Tensor | None
    call: ast.Call
    is_grad: bool

    @property
    def line(self) -> int:
        """The line of the call."""
        return self.at[0]


class Carrier(NamedTuple):
    """A tensor that brings the graph of an earlier backward into this one.

    Attributes:
        name: of the variable or attribute.
        tensors: that it holds and that are of the graph.
        since: where it was computed: ``above`` the loop, ``before`` the earlier backward,
            ``outside`` of the running function; ``kept`` as an attribute; in a ``list`` that grows
            in the loop; as a ``state``, computed from its own last value.
        is_several: whether it is a tuple or list.
    """

    name: str
    tensors: tuple[Tensor, ...]
    since: str
    is_several: bool = False


class _Held(NamedTuple):
    name: str
    value: Any
    tensors: tuple[Tensor, ...]
    kept: str = ""
    """Says of an attribute whether it is a ``state`` or ``kept``; empty of a variable."""


def caller_of(failure: Failure) -> TracebackFrame | None:
    """Return the frame of the program that called the backward which failed."""
    for frame in reversed(failure.frames):
        node = frame.expression
        called = node.func if isinstance(node, ast.Call) and frame.is_user else None
        if isinstance(called, ast.Attribute) and called.attr in ("backward", "grad"):
            return frame
    return None


def earlier_calls(frame: TracebackFrame) -> list[Earlier]:
    """Calls of a backward in the running function, before the running one, the last one first."""
    here = frame.expression
    column = here.col_offset if isinstance(here, ast.expr) else 0
    found = []
    for node in frame.calls_of("backward", "grad"):
        is_earlier = (node.lineno, node.col_offset) < (frame.line, column)
        is_grad = written(node.func).endswith("autograd.grad")
        is_method = node.func.attr == "backward"  # type: ignore[attr-defined]
        if is_earlier and (is_method or is_grad):
            given = (node.args or [node])[0] if is_grad else _begun_at(node)
            held = _tensor_of(frame, given)
            text = line_of(node, frame.file)
            at = (node.lineno, node.col_offset)
            found.append(Earlier(at, text, held, node, is_grad))
    return sorted(found, key=lambda one: one.at, reverse=True)


def keeps(call: ast.Call) -> bool:
    """Return whether a backward keeps its graph."""
    return any(one.arg in ("retain_graph", "create_graph") for one in call.keywords)


def _begun_at(call: ast.Call) -> ast.expr:
    """The loss of ``loss.backward()``, ``scaler.scale(loss).backward()``, ``backward(loss)``."""
    base: ast.expr = call.func.value  # type: ignore[attr-defined]
    if isinstance(base, ast.Call) and getattr(base.func, "attr", "") == "scale" and base.args:
        return base.args[0]
    return call.args[0] if call.args and not isinstance(base, ast.Call) else base


def _tensor_of(frame: TracebackFrame, node: ast.expr) -> Tensor | None:
    """The tensor of an expression, or that of which it is a reduction: ``out`` of ``out.sum()``."""
    while True:
        value = frame.value_of(node)
        if isinstance(value, Tensor):
            return value
        match node:
            case ast.Call(func=ast.Attribute(value=inner)) if not node.args:
                node = inner
            case ast.Subscript(value=inner):
                node = inner
            case _:
                return None


def names_in(*nodes: ast.AST) -> set[str]:
    """Return the names that stand in some expressions."""
    return {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}


def depends_on(frame: TracebackFrame, node: ast.AST, wanted: ast.AST) -> bool:
    """Return whether an expression is computed from another one, as far as the source tells."""
    todo, seen = [node], set[str]()
    while todo:
        one = todo.pop()
        if any(part is wanted for part in ast.walk(one)):
            return True
        for name in names_in(one) - seen:
            seen.add(name)
            todo += [given.value for given in assignments_of(frame, name) if given.value]
    return False


# ---------------------------------------------------------------------- what both go through


def carriers(
    failure: Failure, frame: TracebackFrame, root: Tensor, calls: Sequence[Earlier]
) -> list[Carrier]:
    """Return the tensors by which the graph of earlier backwards goes on into that of a root.

    They lie next to what was computed since, where a detach would part the two.
    """
    inside = set(failure.nodes)
    starts = [one.tensor for one in calls if one.tensor is not None and one.tensor is not root]
    older = inside.intersection(nodes_of(starts))
    found = []
    for held in _held(failure, frame, inside):
        since = _since(frame, held, calls, older)
        if since and not any(one is root for one in held.tensors):
            several = isinstance(held.value, tuple | list)
            found.append(Carrier(held.name, held.tensors, since, several))
    if not found:
        found = list(_states(frame, inside))
    parts = inside.intersection(nodes_of(one for carrier in found for one in carrier.tensors))
    border = _border(inside, parts | older, root)
    nearest = [
        one for one in found if any(part.grad_fn in border for part in one.tensors)
    ] or found[:1]
    # One tensor may have several names, and a state is one by its own last value.
    named = {tuple(map(id, one.tensors)): one for one in reversed(nearest)}
    return _states_first(frame, [*named.values()][::-1])[:_MOST_NAMED]


def _border(inside: set[Node], shared: set[Node], root: Tensor) -> set[Node]:
    """The nodes of a shared part that those of no shared part take."""
    border = {root.grad_fn} & shared
    for node in inside - shared:
        border |= {following for following, _ in node.next_functions if following in shared}
    return border


def _held(failure: Failure, frame: TracebackFrame, inside: set[Node]) -> Iterator[_Held]:
    """Variables, and attributes that outlive a call, of tensors that are nodes of a graph."""
    named = [(name, value, "") for name, value in frame.own_names.items()]
    owner = None if isinstance(frame.owner, Tensor) else getattr(frame.owner, "__dict__", None)
    for name, value in (owner or {}).items():
        named.append((f"self.{name}", value, _kept_in(frame.function, name, frame.line)))
    for _, module in failure.names.modules():
        is_of_torch = type(module).__module__.startswith("torch.")
        own = () if is_of_torch else (*vars(module).items(), *module._buffers.items())
        for name, value in own if module is not frame.owner else ():
            kept = "" if name[:1] == "_" else _kept_by(type(module), name)
            named.append((f"{failure.names.variable(module)}.{name}", value, kept))
    for name, value, kept in named:
        parts = value if type(value) in (tuple, list) else (value,)
        tensors = tuple(
            one
            for one in parts
            if isinstance(one, Tensor) and _is_of(one, inside, is_state=kept == STATE)
        )
        if tensors and (kept or not name.count(".")):
            yield _Held(name, value, tensors, kept)


def _is_of(tensor: Tensor, inside: set[Node], *, is_state: bool) -> bool:
    """Return whether a tensor is of a graph; of a state, whether what computed it is."""
    if not is_state:
        return tensor.grad_fn in inside
    computed = {node for node in inside if getattr(node, "variable", None) is None}
    return not computed.isdisjoint(nodes_of([tensor]))


def _kept_by(kind: type, name: str) -> str:
    """Say whether a method of a class reads an attribute that an earlier call of it has set."""
    codes = (code_of(one) for one in vars(kind).values() if inspect.isfunction(one))
    for code in codes:
        if code is not None and name in code.co_names and code.co_name != "__init__":
            tree = function_tree(code, code.co_firstlineno)
            kept = _kept_in(tree, name, sys.maxsize)
            if kept:
                return kept
    return ""


def _kept_in(function: ast.AST | None, name: str, line: int) -> str:
    """Say whether a function reads an attribute of ``self`` that an earlier call of it has set."""
    found = [
        one
        for one in ast.walk(function or ast.Module([], []))
        if isinstance(one, ast.Attribute) and one.attr == name
        if getattr(one.value, "id", "") in ("self", "s")
    ]
    stored = [one.lineno for one in found if isinstance(one.ctx, ast.Store)]
    read = [one.lineno for one in found if isinstance(one.ctx, ast.Load)]
    if not read or (stored and min(stored) < min(read) and min(stored) <= line):
        return ""
    return STATE if min(stored, default=0) == min(read) else KEPT


def _since(frame: TracebackFrame, held: _Held, calls: Sequence[Earlier], older: set[Node]) -> str:
    """Say where a tensor was computed that an earlier backward went through; empty if not so."""
    if held.kept:
        return held.kept
    loop, name = frame.loop, held.name
    if loop is not None and type(held.value) is list and _grows(loop, name):
        return LIST
    lines = [one.line for one in assignments_of(frame, name)]
    arguments = frame.code.co_varnames[: frame.code.co_argcount]
    if not lines and name not in arguments and frame.code.co_name != "<module>":
        return OUTSIDE
    if loop is not None and lines and max(lines) < loop.lineno:
        return ABOVE
    if older:  # What the earlier backwards began at is known.
        return BEFORE if any(one.grad_fn in older for one in held.tensors) else ""
    return BEFORE if lines and max(lines) < max((one.line for one in calls), default=0) else ""


def _grows(loop: ast.AST, name: str) -> bool:
    """Return whether a loop puts elements into a list."""
    return any(
        isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") in ("append", "extend", "insert")
        and names_in(node.func) == {name}
        for node in ast.walk(loop)
    )


def _states(frame: TracebackFrame, inside: set[Node]) -> Iterator[Carrier]:
    """Variables of the graph that a loop assigns from their own last value."""
    for name in _of_own_last_value(frame):
        value = frame.names.get(name)
        parts = value if isinstance(value, tuple | list) else (value,)
        tensors = tuple(one for one in parts if isinstance(one, Tensor))
        if any(_is_of(one, inside, is_state=True) for one in tensors):
            yield Carrier(name, tensors, STATE, isinstance(value, tuple | list))


def _of_own_last_value(frame: TracebackFrame) -> list[str]:
    """The names that the innermost loop gives a value that is computed from their last one."""
    loop = frame.loop
    assigned = [one for one in ast.walk(loop or ast.Module([], [])) if isinstance(one, ast.Assign)]
    return [
        name
        for one in assigned
        for name in sorted(names_in(one.value) & names_in(*one.targets))
        if isinstance(frame.names.get(name), Tensor | tuple | list)
    ]


def _states_first(frame: TracebackFrame, found: list[Carrier]) -> list[Carrier]:
    states = _of_own_last_value(frame)
    named = [one._replace(since=STATE) if one.name in states else one for one in found]
    return [one for one in named if one.since == STATE] or named


def detached(carrier: Carrier) -> str:
    """Return the statement that takes the graph off what carries it."""
    name = carrier.name
    if not carrier.is_several:
        return f"{name} = {name}.detach()"
    items = f"one.detach() for one in {name}"
    return f"{name} = [{items}]" if carrier.since == LIST else f"{name} = tuple({items})"


def saves_values(nodes: set[Node]) -> bool:
    """Return whether one of some nodes saves a value, which a backward would free."""
    return any(True for node in nodes for _ in saved_by(node))


def freed_in(failure: Failure, nodes: list[Node], *, is_certain: bool) -> tuple[Details, str]:
    """A node that an earlier backward has freed, and the module of the first such node.

    The oldest one is taken where that is not certain: what is younger may have been freed by the
    backward that failed, which runs the youngest first.
    """
    freed = [node for node in nodes if any(one.state == FREED for one in saved_by(node))]
    if not is_certain:
        freed.sort(key=lambda node: int(node._sequence_nr()))
    places = [place_of_node(node, failure.names) for node in freed[:200]]
    module = next((one for _, one in places if one is not None), None)
    return tuple(("freed", text) for text, _ in places[:1]), failure.names.module(module)


def begun_at(failure: Failure, frame: TracebackFrame, root: Tensor) -> tuple[str, int]:
    """The variable that a backward begins at, and the line that made it; 0 where several may."""
    names = [key for key, value in frame.own_names.items() if value is root]
    node = frame.expression
    if not names and isinstance(node, ast.Call):
        # The graph of y[0, i] is that of y.
        is_grad = written(node.func).endswith("autograd.grad")
        inner = node.args[0] if is_grad and node.args else getattr(node.func, "value", node)
        held = {key: frame.names.get(key) for key in names_in(inner)}
        names = [key for key, one in held.items() if isinstance(one, Tensor) and one.grad_fn]
        names = names if len(names) == 1 else []
    made = [one.line for key in names[:1] for one in assignments_of(frame, key)]
    return (names or [failure.called(root, "the loss")])[0], made[0] if len(made) == 1 else 0


def summed_in_loop(frame: TracebackFrame, name: str) -> ast.expr | None:
    """Return what the loop around the line adds to a name in each round; ``None`` if it does not.

    ``loss`` of ``total += loss`` and of ``total = total + loss``.
    """
    for node in ast.walk(frame.loop) if frame.loop is not None else ():
        match node:
            case ast.AugAssign(target=ast.Name(id=target), op=ast.Add(), value=added):
                if target == name:
                    return added
            case ast.Assign(
                targets=[ast.Name(id=target)],
                value=ast.BinOp(left=ast.Name(id=left), op=ast.Add(), right=added),
            ):
                if target == left == name:
                    return added
    return None


def is_of_outside(frame: TracebackFrame, name: str) -> bool:
    """Return whether a function reads a variable that was assigned outside of it."""
    is_free = name in frame.code.co_freevars or name in frame.code.co_names
    return is_free and frame.code.co_name != "<module>" and name in frame.names


def earlier_of(calls: Sequence[Earlier], nodes: Iterable[Node], root: Tensor) -> Earlier | None:
    """The last earlier backward that went through some of these nodes and saved values there."""
    shared = set(nodes)
    for call in calls:
        begun = [] if call.tensor is None or call.tensor is root else [call.tensor]
        if saves_values(shared.intersection(nodes_of(begun))):
            return call
    return None


def argument_with_graph(failure: Failure, frame: TracebackFrame) -> str:
    """The argument of a function that has a graph, a part of that of the loss; empty if none has.

    Empty too where the function itself called a backward before.
    """
    inside = set(failure.nodes)
    names = frame.code.co_varnames[: frame.code.co_argcount]
    for name in () if earlier_calls(frame) else names:
        one = frame.frame.f_locals.get(name)
        is_root = any(one is root for root in failure.differentiated)
        if isinstance(one, Tensor) and not is_root and one.grad_fn in inside:
            return name
    return ""
