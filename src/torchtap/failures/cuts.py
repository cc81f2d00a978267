"""Where the source of a program cuts the autograd graph: ``detach``, ``no_grad``, ``item``."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from torchtap.failures.failure import Failure
from torchtap.failures.frame import shown_file, source_tree, written

_METHODS = {
    "detach": "Take the .detach() away: it returns a tensor without a graph.",
    "detach_": "Take the .detach_() away: it takes the graph off.",
    "item": "Take the .item() away: it returns a number of Python, without a graph.",
    "tolist": "Take the .tolist() away: it returns numbers of Python, without a graph.",
    "numpy": "Stay in PyTorch: an array of numpy has no graph.",
    "argmax": "Compute the loss from what argmax was given: indices have no gradient.",
}
_MAKERS = {
    "tensor": "Use the tensor itself, or torch.stack: torch.tensor(...) copies values alone.",
    "from_numpy": "Stay in PyTorch: an array of numpy has no graph.",
}
_FIRST = "Give create_graph=True to torch.autograd.grad, if its result is differentiated again."
_MODES = {
    "no_grad": "Take torch.no_grad() away from what is trained.",
    "inference_mode": "Take torch.inference_mode() away from what is trained.",
}


class Cut(NamedTuple):
    """A place where the graph ends.

    Attributes:
        text: file, line and source.
        way: what to do about it.
        module: the modules whose code it is, in a sentence; empty if it is of none.
        is_mode: whether it is a mode, for a whole block.
    """

    text: str
    way: str
    module: str
    is_mode: bool


def cuts_in(failure: Failure) -> list[Cut]:
    """The places of the running functions and of forwards that cut, modules' own first."""
    found: list[Cut] = []
    seen: set[tuple[str, int]] = set()
    for file, first, last, module in _ranges(failure):
        tree = source_tree(file)
        for node in ast.walk(tree) if tree is not None else ():
            line = getattr(node, "lineno", 0)
            if not first <= line <= last or (file, line) in seen:
                continue
            cut = _cut(node, file)
            if cut is not None:
                seen.add((file, line))
                text = f"{shown_file(file)}:{line}: {cut[0]}"
                found.append(Cut(text, cut[1], module, cut[2]))
    return found


def without_grad(failure: Failure) -> str:
    """The models of which no parameter requires grad, in a sentence; empty if there is one."""
    trained = [
        (label, one) for label, one in failure.names.models if any(True for _ in one.parameters())
    ]
    if not trained or any(p.requires_grad for _, one in trained for p in one.parameters()):
        return ""
    return ", ".join(f"{label} ({type(one).__name__})".strip() for label, one in trained)


def modules_at(failure: Failure, file: str, line: int) -> list[nn.Module]:
    """The modules whose forward holds a line."""
    return [
        one
        for kind, modules in _classes(failure).items()
        for where, first, last in [_lines_of(kind)]
        if where == file and first <= line <= last
        for one in modules
    ]


def _classes(failure: Failure) -> dict[type[nn.Module], list[nn.Module]]:
    """The classes of modules that the program wrote itself, with their modules."""
    found: dict[type[nn.Module], list[nn.Module]] = {}
    for _, module in failure.names.modules():
        if not type(module).__module__.startswith("torch."):
            found.setdefault(type(module), []).append(module)
    return found


def _lines_of(kind: type[nn.Module]) -> tuple[str, int, int]:
    """File, first and last line of the forward of a class; no file where it is not known."""
    forward = inspect.unwrap(kind.forward)
    try:
        lines, first = inspect.getsourcelines(forward)
        return inspect.getsourcefile(forward) or "", first, first + len(lines) - 1
    except (OSError, TypeError):
        return "", 0, 0


def _ranges(failure: Failure) -> Iterator[tuple[str, int, int, str]]:
    """File, first and last line, and module, of code that took part."""
    for kind, modules in _classes(failure).items():
        file, first, last = _lines_of(kind)
        if file:
            yield file, first, last, ", ".join(failure.names.module(one) for one in modules[:3])
    for frame in reversed(failure.frames):
        if not frame.is_torch and frame.function is not None:
            first = getattr(frame.function, "lineno", 1)
            decorators = getattr(frame.function, "decorator_list", ())
            first = min([first, *(one.lineno for one in decorators)])
            yield frame.file, first, frame.line, ""


def _cut(node: ast.AST, file: str) -> tuple[str, str, bool] | None:
    """What cuts, the way out, and whether it is a mode."""
    if isinstance(node, ast.With | ast.AsyncWith):
        for one in node.items:
            mode = _mode(one.context_expr)
            if mode:
                return f"with {written(one.context_expr, file)}", _MODES[mode], True
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for decorator in node.decorator_list:
            mode = _mode(decorator)
            if mode:
                return f"@{written(decorator, file)}", _MODES[mode], True
    if isinstance(node, ast.Attribute) and node.attr == "data":
        return written(node, file), "Take the .data away: it is a tensor without a graph.", False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name, base = node.func.attr, node.func.value
        is_made = isinstance(base, ast.Name) and base.id == "torch" and name in _MAKERS
        if is_made and node.args and not isinstance(node.args[0], ast.Constant | ast.List):
            return written(node, file), _MAKERS[name], False
        if name in _METHODS:
            return written(node, file), _METHODS[name], False
        given = {one.arg for one in node.keywords}
        if name == "grad" and written(base).endswith("autograd") and "create_graph" not in given:
            return written(node, file), _FIRST, False
    return None


def _mode(node: ast.expr) -> str:
    called = node.func if isinstance(node, ast.Call) else node
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name if name in _MODES else ""
