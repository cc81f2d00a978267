"""Find where a program's source cuts the autograd graph: ``detach``, ``no_grad``, ``item``."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from torchtap.core.source_files import is_of_library, shown_file
from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import function_tree, last_name, source_tree, written
from torchtap.failures.traceback_frame import MISSING, value_in

_METHODS = {
    "detach": "Take the .detach() away: it returns a tensor without a graph.",
    "detach_": "Take the .detach_() away: it takes the graph off.",
    "item": "Take the .item() away: it returns a number of Python, without a graph.",
    "tolist": "Take the .tolist() away: it returns numbers of Python, without a graph.",
    "numpy": "Stay in PyTorch: an array of numpy has no graph.",
    "sample": "Draw by .rsample(), where the distribution has it: through .sample() no gradient "
    "comes. Of discrete ones, weight the loss by log_prob of the sample.",
    "argmax": "Compute the loss from what argmax was given: indices have no gradient.",
}
_MAKERS = {
    "tensor": "Use the tensor itself, or torch.stack: torch.tensor(...) copies values alone.",
    "FloatTensor": "Use the tensor itself, or torch.stack: torch.FloatTensor(...) copies values.",
    "Tensor": "Use the tensor itself, or torch.stack: torch.Tensor(...) copies values alone.",
    "from_numpy": "Stay in PyTorch: an array of numpy has no graph.",
}
_WHOLE_AGAIN = ("float", "double", "half", "bfloat16", "to", "type")
_COMPUTED = "Compute the loss from floats: comparisons and whole numbers have no gradient."
_FIRST = "Give create_graph=True to torch.autograd.grad, if its result is differentiated again."
_CHECKPOINT = (
    "Give use_reentrant=False to the checkpoint: with True, its output has a graph only if an "
    "input requires grad."
)
_MODES = {
    "no_grad": "Take torch.no_grad() away from what is trained.",
    "inference_mode": "Take torch.inference_mode() away from what is trained.",
}


_ValueOf = Callable[[ast.AST], Any]
"""Tells the value of an expression, or ``MISSING``."""


class GraphCut(NamedTuple):
    """A place where the graph ends.

    Attributes:
        text: file, line and source.
        way: what to do about it.
        module: the modules whose code it is, in a sentence; empty if it is of none.
        is_mode: whether it is a mode, for a whole block.
        is_on_way: whether what it gives goes into the tensor, or into what the module returns, as
            far as the source of its function tells.
    """

    text: str
    way: str
    module: str
    is_mode: bool
    is_on_way: bool


def cuts_in(failure: Failure) -> list[GraphCut]:
    """Return the places that cut in the running functions and in forwards, modules' own first.

    Where some are on the way to the tensor, these alone; else what may be.
    """
    cuts = list(_every_cut(failure))
    chosen = [cut for cut in cuts if cut.is_on_way] or cuts
    first: dict[str, GraphCut] = {}
    for one in chosen:
        first.setdefault(one.text, one)
    return list(first.values())


def _every_cut(failure: Failure) -> Iterator[GraphCut]:
    for file, first, last, module, value_of in _ranges(failure):
        nodes = ast.walk(source_tree(file) or ast.Module([], []))
        inside = [one for one in nodes if first <= getattr(one, "lineno", 0) <= last]
        # A forward of a module counts by what it returns; a running function by the line where it
        # stands.
        on_way = _way_of(inside, 0 if module else last, value_of)
        for node in inside:
            cut = None if _is_running(failure, node, file) else _cut(node, file)
            if cut is not None:
                at, source, way, is_mode = f"{shown_file(file)}:{node.lineno}", *cut  # type: ignore[attr-defined]
                # A mode cuts all that is computed inside its block.
                parts = ast.walk(node) if is_mode else (node,)
                is_on_way = any(id(part) in on_way for part in parts)
                yield GraphCut(f"{at}: {source}", way, module, is_mode, is_on_way)


def _is_running(failure: Failure, node: ast.AST, file: str) -> bool:
    """Return whether an expression is the call that failed, which cut nothing."""
    user = failure.user
    here = None if user is None or user.file != file else user.expression
    return here is not None and _position(here) == _position(node)


def _position(node: ast.AST) -> tuple[int | None, int | None, int | None]:
    at = getattr(node, "lineno", None), getattr(node, "col_offset", None)
    return *at, getattr(node, "end_col_offset", None)


def _way_of(inside: Sequence[ast.AST], last: int, value_of: _ValueOf) -> set[int]:
    """The expressions that what a function returns, or what its last line names, is made from.

    Follows names alone, whatever the order of the lines. It ends at a module that is trained: its
    output has a graph, with any input.
    """
    todo: list[ast.AST] = [
        one.value for one in inside if isinstance(one, ast.Return) and one.value and not last
    ]
    todo += [one for one in inside if isinstance(one, ast.expr) and one.lineno == last]
    nodes: set[int] = set()
    names: set[str] = set()
    while todo:
        for node in _parts(todo.pop(), value_of):
            if isinstance(node, ast.expr):  # Contexts are one object for all.
                nodes.add(id(node))
            # Each name once: x = f(x) would lead to itself.
            if isinstance(node, ast.Name) and node.id not in names:
                names.add(node.id)
                todo += _given_to(node.id, inside)
    return nodes


def _parts(node: ast.AST, value_of: _ValueOf) -> Iterator[ast.AST]:
    """Yield an expression and its parts, without what is given to a module that is trained."""
    yield node
    called = value_of(node.func) if isinstance(node, ast.Call) else None
    is_trained = isinstance(called, nn.Module) and any(p.requires_grad for p in called.parameters())
    for part in () if is_trained else ast.iter_child_nodes(node):
        yield from _parts(part, value_of)


def _given_to(name: str, inside: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the values that a name is given in a function."""
    for node in inside:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.For):
            targets = [node.target]
        value = node.iter if isinstance(node, ast.For) else getattr(node, "value", None)
        for target in targets:
            held = {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}
            if name in held and value is not None:
                yield value
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=filled), attr="append" | "extend"), args=given
            ) if filled == name:
                yield from given


def without_grad(failure: Failure) -> str:
    """The models of which no parameter requires grad, in a sentence; empty if there is one."""
    trained = [
        (label, one) for label, one in failure.names.models if any(True for _ in one.parameters())
    ]
    if not trained or any(p.requires_grad for _, one in trained for p in one.parameters()):
        return ""
    return ", ".join(f"{label} ({type(one).__name__})".strip() for label, one in trained)


def modules_at(failure: Failure, file: str, line: int) -> list[nn.Module]:
    """Return the modules whose forward holds a line."""
    at_line = []
    for kind, modules in _classes(failure).items():
        where, first, last = _lines_of(kind.forward)
        if where == file and first <= line <= last:
            at_line += modules
    return at_line


def _classes(failure: Failure) -> dict[type[nn.Module], list[nn.Module]]:
    """Return the classes of modules that the program wrote itself, with their modules."""
    by_class: dict[type[nn.Module], list[nn.Module]] = {}
    for _, module in failure.names.modules():
        if not type(module).__module__.startswith("torch."):
            by_class.setdefault(type(module), []).append(module)
    return by_class


def _lines_of(function: Callable[..., Any] | None) -> tuple[str, int, int]:
    """File, first and last line of a function; no file where it is not known."""
    code = None if function is None else getattr(inspect.unwrap(function), "__code__", None)
    tree = None if code is None else function_tree(code, code.co_firstlineno)
    if code is None or not isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        return "", 0, 0
    return code.co_filename, code.co_firstlineno, tree.end_lineno or tree.lineno


def _ranges(failure: Failure) -> Iterator[tuple[str, int, int, str, _ValueOf]]:
    """File, first and last line, module, and values of expressions, of code that took part."""
    for kind, modules in _classes(failure).items():
        # Lightning's steps are forwards too, which it calls itself.
        for method in (kind.forward, getattr(kind, "training_step", None)):
            file, first, last = _lines_of(method)
            if file and not is_of_library(file):
                yield (
                    file,
                    first,
                    last,
                    ", ".join(failure.names.module(module) for module in modules[:3]),
                    partial(_value_of_member, modules[0]),
                )
    for frame in reversed(failure.frames):
        if frame.is_user and frame.function is not None:
            decorators = getattr(frame.function, "decorator_list", ())
            lines = [
                getattr(frame.function, "lineno", 1),
                *(decorator.lineno for decorator in decorators),
            ]
            yield frame.file, min(lines), frame.line, "", frame.value_of


def _value_of_member(module: nn.Module, node: ast.AST) -> Any:
    """Return the value of an expression of a module's forward that begins at ``self``."""
    return value_in(node, lambda name: module if name == "self" else MISSING)


def _cut(node: ast.AST, file: str) -> tuple[str, str, bool] | None:
    """Return a cut's text, the way out, and whether it is a mode; ``None`` if there is none."""
    modes: list[tuple[str, ast.expr]] = []
    if isinstance(node, ast.With | ast.AsyncWith):
        modes = [("with ", item.context_expr) for item in node.items]
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        modes = [("@", one) for one in node.decorator_list]
    for head, one in modes:
        name = last_name(one.func if isinstance(one, ast.Call) else one)
        if name in _MODES:
            return f"{head}{written(one, file)}", _MODES[name], True
    way = _way_of_checkpoint(node)
    if isinstance(node, ast.Attribute) and node.attr == "data" and not _is_no_tensor(node):
        way = "Take the .data away: it is a tensor without a graph."
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        way = _way_of_call(node, node.func)
    return (written(node, file), way, False) if way else None


def _way_of_checkpoint(node: ast.AST) -> str:
    """The way out of a reentrant checkpoint, which has a graph only if its inputs have one."""
    name = last_name(node.func) if isinstance(node, ast.Call) else ""
    if name not in ("checkpoint", "checkpoint_sequential"):
        return ""
    given = [keyword.value for keyword in node.keywords if keyword.arg == "use_reentrant"]  # type: ignore[attr-defined]
    is_on = bool(given) and getattr(given[0], "value", None) is True
    return _CHECKPOINT if is_on else ""


def _way_of_call(node: ast.Call, called: ast.Attribute) -> str:
    """Return the way out of a call that cuts the graph; empty if it does not."""
    name, base = called.attr, called.value
    is_made = isinstance(base, ast.Name) and base.id == "torch" and name in _MAKERS
    if is_made and node.args and not isinstance(node.args[0], ast.Constant | ast.List):
        return _MAKERS[name]
    if name in _WHOLE_AGAIN and _is_whole(base):
        return _COMPUTED
    # With a variable as argument it is not known whether it switches off.
    if name == "set_grad_enabled" and getattr((node.args or [base])[0], "value", 1) is False:
        return _MODES["no_grad"].replace("no_grad()", f"{name}(False)")
    is_first = name == "grad" and written(base).endswith("autograd")
    if is_first and "create_graph" not in {keyword.arg for keyword in node.keywords}:
        return _FIRST
    if name == "sample" and written(base) in ("random", "rng"):
        return ""
    return _METHODS.get(name, "")


def _is_whole(node: ast.expr) -> bool:
    """Return whether an expression gives whole numbers or booleans: ``x > 0`` or ``x.long()``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("long", "int", "bool", "byte", "short")
    return isinstance(node, ast.Compare)


def _is_no_tensor(node: ast.Attribute) -> bool:
    """Return whether ``.data`` is that of a package, of a class's own, or is written to."""
    base = written(node.value)
    return base in ("self", "torch.utils", "utils") or not isinstance(node.ctx, ast.Load)
