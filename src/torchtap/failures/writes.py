"""Find where the source of a program writes into tensors in place."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from torchtap.core.user_functions import code_of
from torchtap.failures.assignments import runs_before
from torchtap.failures.frame import Frame, shown_file
from torchtap.failures.graph_reading import Node, operation, place_of, shares_memory
from torchtap.failures.names import Names
from torchtap.failures.recording import WriteAt, recorded_writes
from torchtap.failures.source import source_tree, written

_OPERATORS = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.Div: "Div",
    ast.Pow: "Pow",
    ast.MatMult: "Mm",
}
CERTAIN = "written by"
_ANY_WRITE = "CopySlices"
"""What autograd calls every write into a view."""


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
    operation: str
    target: ast.expr | None
    file: str
    line: int


def writes_in(file: str) -> Iterator[Write]:
    """All places of a file that look as if they wrote into a tensor."""
    tree = source_tree(file)
    for node in ast.walk(tree) if tree is not None else ():
        found = _written(node)
        if found is not None and isinstance(node, ast.stmt | ast.expr):
            kind, target = found
            text = f"{shown_file(file)}:{node.lineno}: {written(node, file)}"
            yield Write(text, kind, target, file, node.lineno)


def _written(node: ast.AST) -> tuple[str, ast.expr] | None:
    if isinstance(node, ast.AugAssign):
        kind = _OPERATORS.get(type(node.op))
        return None if kind is None else (kind, node.target)
    if isinstance(node, ast.Assign):
        inner = [one for one in node.targets if isinstance(one, ast.Subscript)]
        return (_ANY_WRITE, inner[0].value) if inner else None
    if isinstance(node, ast.Call):
        return _written_by_call(node)
    return None


def _written_by_call(node: ast.Call) -> tuple[str, ast.expr] | None:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    in_place = [one for one in node.keywords if one.arg == "inplace"]
    is_on = bool(in_place) and getattr(in_place[0].value, "value", False) is True
    if is_on and node.args and name[:1].islower():  # nn.ReLU(inplace=True) writes when called.
        return _camel(name), node.args[0]
    out = [one.value for one in node.keywords if one.arg == "out"]
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


def writer_of(
    tensor: Tensor | None, writer: Node | None, frames: Sequence[Frame], names: Names, since: int
) -> tuple[str, list[Write]]:
    """The places that have overwritten a tensor, or may have.

    Args:
        tensor: what was overwritten, if it is still there.
        writer: the node of the write, if autograd saw it.
        frames: of the exception.
        names: of the modules.
        since: the version that the tensor was saved at.

    Returns:
        how certain it is (``written by``, ``perhaps by`` or ``one of``), and the places.
    """
    if tensor is not None:
        seen = [_seen(one, names) for one in recorded_writes(tensor, since=since)]
        if seen:
            return CERTAIN, seen
    placed = None if writer is None else place_of(writer, names)[1]
    if placed is not None and getattr(placed, "inplace", False) is True:
        return CERTAIN, [_of_module(placed, names)]
    known = list(_known_writes(tensor, frames)) if tensor is not None else []
    certain = [write for write, ran in known if ran]
    if certain:
        return CERTAIN, certain
    modules = list(_writing_modules(writer, names)) if writer is not None else []
    kind = None if writer is None else operation(writer)
    fitting = [
        one
        for file in _files(frames, names)
        for one in writes_in(file)
        if kind is None or kind in (one.operation, _ANY_WRITE) or one.operation == _ANY_WRITE
        if not _is_no_tensor(one, frames, names)
    ]
    fitting.sort(key=_is_far(frames, names))  # The note has room for some.
    found = [*modules, *(write for write, _ in known), *fitting]
    found = list({one.text: one for one in found}.values())
    return "perhaps by" if len(found) == 1 else "one of", found


def _seen(write: WriteAt, names: Names) -> Write:
    """A write that was recorded, in words."""
    if write.compiled:
        at = f"{shown_file(write.file)}:{write.line}"
        text = f"{write.compiled} ({at}), which torch.compile compiled: its lines are not recorded"
        return Write(text, "", None, write.file, write.line)
    source = linecache.getline(write.file, write.line).strip()
    inside = [one for _, one in names.modules() if id(one) == write.module]
    where = f", in {names.module(inside[0])}" if inside else ""
    text = f"{shown_file(write.file)}:{write.line}{where}: {source}"
    return Write(text, "", None, write.file, write.line)


def _known_writes(tensor: Tensor, frames: Sequence[Frame]) -> Iterator[tuple[Write, bool | None]]:
    """Writes of running functions into the memory of the tensor, and whether they ran."""
    for frame in frames:
        if frame.is_torch or frame.function is None:
            continue
        first = getattr(frame.function, "lineno", 1)
        last = getattr(frame.function, "end_lineno", None) or frame.line
        for one in writes_in(frame.file):
            if one.target is None or not first <= one.line <= last:
                continue
            value = frame.value_of(_base(one.target))
            ran = runs_before(frame.function, one.line, frame.line)
            is_same = isinstance(value, Tensor) and shares_memory(value, tensor)
            if is_same and ran is not False:
                yield one, ran


_NO_TENSORS = (int, float, str, list, dict)


def _is_no_tensor(write: Write, frames: Sequence[Frame], names: Names) -> bool:
    """Return whether what is written into is seen to be a number, a list or the like."""
    target = write.target
    if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
        held = [vars(one).get(target.attr) for _, one in names.modules()]
        held = [one for one in held if one is not None]
        if held and all(isinstance(one, _NO_TENSORS) for one in held):
            return True
    for frame in frames:
        if frame.file == write.file and write.target is not None and frame.function is not None:
            first = getattr(frame.function, "lineno", 1)
            last = getattr(frame.function, "end_lineno", None) or write.line
            value = frame.value_of(write.target)
            if first <= write.line <= last and isinstance(value, _NO_TENSORS):
                return True
    return False


def _base(target: ast.expr) -> ast.expr:
    while isinstance(target, ast.Subscript):
        target = target.value
    return target


def _writing_modules(writer: Node, names: Names) -> Iterator[Write]:
    """Modules with ``inplace=True`` of the kind of a write."""
    kind = operation(writer).lower()
    for _, one in names.modules():
        if getattr(one, "inplace", False) is True and type(one).__name__.lower() == kind:
            yield _of_module(one, names)


def _of_module(module: nn.Module, names: Names) -> Write:
    return Write(f"{names.module(module)}, which has inplace=True", "", None, "", 0)


def _is_far(frames: Sequence[Frame], names: Names) -> Callable[[Write], bool]:
    """Return a test whether a write stands in no running function, and in no method of a module."""
    kinds = {type(one) for _, one in names.modules()}
    codes = [getattr(one, "__code__", None) for kind in kinds for one in vars(kind).values()]
    ranges = [
        (code.co_filename, code.co_firstlineno, max(line for _, _, line in code.co_lines() if line))
        for code in (*codes, *(frame.code for frame in frames))
        if code is not None and code.co_name != "<module>"
    ]

    def is_far(write: Write) -> bool:
        return not any(write.file == one and low <= write.line <= high for one, low, high in ranges)

    return is_far


def _files(frames: Sequence[Frame], names: Names) -> Iterable[str]:
    """Files of the program: those of its running functions, and of its modules."""
    found = {frame.file: None for frame in frames if not frame.is_torch and not frame.is_ours}
    for _, module in names.modules():
        if not type(module).__module__.startswith("torch."):
            code = code_of(inspect.unwrap(type(module).forward))
            if code is not None:
                found[code.co_filename] = None
    return found
