"""Find where the source of a program writes into tensors in place."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from torchtap.core.source_files import shown_file
from torchtap.core.user_functions import code_of
from torchtap.failures.assignments import assigned_before, runs_before
from torchtap.failures.graph_reading import Node, operation, place_of_node, shares_memory
from torchtap.failures.module_names import Names
from torchtap.failures.parsed_source import last_name, source_tree
from torchtap.failures.recording import WriteAt, recorded_writes
from torchtap.failures.traceback_frame import TracebackFrame, line_of

_OPERATORS = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.Div: "Div",
    ast.Pow: "Pow",
    ast.MatMult: "Mm",
}
_NO_TENSORS = (int, float, str, list, dict)
CERTAIN = "written by"
_ANY_WRITE = "CopySlices"
"""Names the node of every write into a view."""


class Write(NamedTuple):
    """A place that writes in place.

    Attributes:
        text: file, line and source; or the module that does it.
        operation: as autograd would name it, such as ``Add``.
        target: what is written into.
        file: of the source; empty of a module.
        line: of the source.
    """

    text: str
    operation: str = ""
    target: ast.expr | None = None
    file: str = ""
    line: int = 0


def writes_in(file: str) -> Iterator[Write]:
    """Yield all places of a file that look as if they wrote into a tensor."""
    tree = source_tree(file)
    for node in ast.walk(tree) if tree is not None else ():
        written_to = _written(node)
        if written_to is not None and isinstance(node, ast.stmt | ast.expr):
            kind, target = written_to
            yield Write(line_of(node, file), kind, target, file, node.lineno)


def _written(node: ast.AST) -> tuple[str, ast.expr] | None:
    if isinstance(node, ast.AugAssign):
        kind = _OPERATORS.get(type(node.op))
        return None if kind is None else (kind, node.target)
    if isinstance(node, ast.Assign):
        inner = [target for target in node.targets if isinstance(target, ast.Subscript)]
        return (_ANY_WRITE, inner[0].value) if inner else None
    if isinstance(node, ast.Call):
        return _written_by_call(node)
    return None


def _written_by_call(node: ast.Call) -> tuple[str, ast.expr] | None:
    name = last_name(node.func)
    in_place = [keyword for keyword in node.keywords if keyword.arg == "inplace"]
    is_on = bool(in_place) and getattr(in_place[0].value, "value", False) is True
    if is_on and node.args and name[:1].islower():  # nn.ReLU(inplace=True) writes when called.
        return _camel(name), node.args[0]
    out = [keyword.value for keyword in node.keywords if keyword.arg == "out"]
    if out:
        return _camel(name), out[0]
    if not name.endswith("_") or name.endswith("__") or name == "requires_grad_":
        return None
    target = node.func.value if isinstance(node.func, ast.Attribute) else None
    is_function = isinstance(target, ast.Name) and target.id in ("torch", "F", "nn", "init")
    if target is None or is_function:
        target = node.args[0] if node.args else None
    return None if target is None else (_camel(name.rstrip("_")), target)


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


_COMPUTED_BY = {"Dropout": "Mul"}
"""Functions that write by another operation, under whose name autograd keeps it."""


def writer_of(
    tensor: Tensor | None,
    writer: Node | None,
    frames: Sequence[TracebackFrame],
    names: Names,
    since: int,
) -> tuple[str, list[Write]]:
    """Return the places that have overwritten a tensor, or may have.

    Args:
        tensor: what was overwritten, if it is still there.
        writer: the node of the write, if autograd saw it.
        frames: of the exception.
        names: of the modules.
        since: the version that the tensor was saved at.

    Returns:
        how certain it is (``written by``, ``perhaps by`` or ``one of``), and the places.
    """
    recorded = [] if tensor is None else recorded_writes(tensor, since=since)
    # By certainty: what was seen, what autograd's node names, what ran for certain, what may have.
    if recorded:
        return CERTAIN, [_seen(one, names) for one in recorded]
    placed = None if writer is None else place_of_node(writer, names)[1]
    if placed is not None and _is_in_place(placed):
        return CERTAIN, [_of_module(placed, names)]
    known = [] if tensor is None else list(_known_writes(tensor, frames))
    certain = [write for write, ran in known if ran]
    if certain:
        return CERTAIN, certain
    kind = "" if writer is None else operation(writer)
    modules = [one for _, one in names.modules() if _is_in_place(one)]
    alike = [module for module in modules if type(module).__name__.lower() == kind.lower()]
    fitting = [
        one
        for file in _files(frames, names)
        for one in writes_in(file)
        # x[i] = y may be a copy_, an index_put_ or a fill_: its source fits any of them.
        if kind in ("", _ANY_WRITE, _COMPUTED_BY.get(one.operation, one.operation))
        or one.operation == _ANY_WRITE
        if not _is_no_tensor(one, frames, names)
    ]
    fitting.sort(key=_is_far(frames, names))  # The note has room for some.
    if not alike and not known and not fitting:
        alike = modules  # Dropout writes by a product, for instance.
    writers = [*(_of_module(one, names) for one in alike), *(one for one, _ in known), *fitting]
    # A module's forward may be found by several ways.
    writers = list({one.text: one for one in writers}.values())
    return "perhaps by" if len(writers) == 1 else "one of", writers


def _is_in_place(module: nn.Module) -> bool:
    return getattr(module, "inplace", False) is True


def _of_module(module: nn.Module, names: Names) -> Write:
    return Write(f"{names.module(module)}, which has inplace=True")


def _seen(write: WriteAt, names: Names) -> Write:
    """Return a write that was recorded, in words."""
    at = f"{shown_file(write.file)}:{write.line}"
    if write.compiled:
        text = f"{write.compiled} ({at}), which torch.compile compiled: its lines are not recorded"
    else:
        inside = [one for _, one in names.modules() if id(one) == write.module]
        where = f", in {names.module(inside[0])}" if inside else ""
        text = f"{at}{where}: {linecache.getline(write.file, write.line).strip()}"
    return Write(text, file=write.file, line=write.line)


def _known_writes(
    tensor: Tensor, frames: Sequence[TracebackFrame]
) -> Iterator[tuple[Write, bool | None]]:
    """Writes of running functions into the memory of the tensor, and whether they ran."""
    for frame in frames:
        if frame.is_torch or frame.function is None:
            continue
        for one in writes_in(frame.file):
            target = one.target if _is_of(frame, one, frame.line) else None
            # x[0][1] += 1 writes into the memory of x.
            while isinstance(target, ast.Subscript):
                target = target.value
            value = None if target is None else frame.value_of(target)
            ran = runs_before(frame.function, one.line, frame.line)
            if isinstance(value, Tensor) and shares_memory(value, tensor) and ran is not False:
                yield one, ran


def _is_of(frame: TracebackFrame, write: Write, last: int) -> bool:
    """Return whether a write of its file stands in the function of a frame, or above a line."""
    first = getattr(frame.function, "lineno", 1)
    return first <= write.line <= (getattr(frame.function, "end_lineno", None) or last)


def _is_no_tensor(write: Write, frames: Sequence[TracebackFrame], names: Names) -> bool:
    """Return whether what is written into is seen to be a number, a list or the like."""
    target = write.target
    if isinstance(target, ast.Name) and _begins_as_a_list(write.file, write.line, target.id):
        return True
    if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
        held = [vars(one).get(target.attr) for _, one in names.modules()]
        held = [one for one in held if one is not None]
        if held and all(isinstance(one, _NO_TENSORS) for one in held):
            return True
    return target is not None and any(
        isinstance(frame.value_of(target), _NO_TENSORS)
        for frame in frames
        if frame.file == write.file and frame.function is not None
        if _is_of(frame, write, write.line)
    )


def _begins_as_a_list(file: str, line: int, name: str) -> bool:
    """Return whether the function around a line gives a name lists alone, before it is added to."""
    functions = [
        one
        for one in ast.walk(source_tree(file) or ast.Module([], []))
        if isinstance(one, ast.FunctionDef) and one.lineno <= line <= (one.end_lineno or 0)
    ]
    given = assigned_before(functions[-1], line, file, name) if functions else []
    values = [one.value for one in given if one.line != line]
    return bool(values) and all(isinstance(one, ast.List | ast.ListComp) for one in values)


def _is_far(frames: Sequence[TracebackFrame], names: Names) -> Callable[[Write], bool]:
    """Return a test whether a write stands in no running function, and in no method of a module."""
    kinds = {type(one) for _, one in names.modules()}
    # All methods: a forward may write by a helper of its class.
    codes = [getattr(one, "__code__", None) for kind in kinds for one in vars(kind).values()]
    ranges = [
        (code.co_filename, code.co_firstlineno, max(line for _, _, line in code.co_lines() if line))
        for code in (*codes, *(frame.code for frame in frames))
        if code is not None and code.co_name != "<module>"
    ]

    def is_far(write: Write) -> bool:
        return not any(write.file == one and low <= write.line <= high for one, low, high in ranges)

    return is_far


def _files(frames: Sequence[TracebackFrame], names: Names) -> Iterable[str]:
    """Files of the program: those of its running functions, and of its modules."""
    kinds = [type(one) for _, one in names.modules()]
    own = (kind for kind in kinds if not kind.__module__.startswith("torch."))
    codes = [frame.code for frame in frames if frame.is_user]
    codes += filter(None, (code_of(inspect.unwrap(one.forward)) for one in own))
    return dict.fromkeys(code.co_filename for code in codes)
