"""Custom functions (``torch.autograd.Function``), and derivatives that there are not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from torchtap.core.source_files import shown_file
from torchtap.failures.failure import Details, Failure
from torchtap.failures.graph_reading import place_of_node
from torchtap.failures.parsed_source import function_tree, source_tree
from torchtap.failures.situation_row import Situation, SituationRow

_Definition = TypeVar("_Definition", ast.ClassDef, ast.FunctionDef)
_SECOND = "Leave out create_graph=True, if no second derivative is wanted."


def _defined(failure: Failure, kind: type[_Definition]) -> Iterator[tuple[str, _Definition]]:
    """The classes or functions in the files that the exception passed."""
    for file in dict.fromkeys(one.file for one in failure.frames if not one.is_torch):
        tree = source_tree(file)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, kind):
                yield shown_file(file), node


def _backward_of(failure: Failure, node: str) -> Details:
    """Return where the backward of a custom function is defined, and where it is in the graph."""
    kind = node.removesuffix("Backward")
    found = [
        ("function", f"{file}:{one.lineno}, {kind}.backward")
        for file, definition in _defined(failure, ast.ClassDef)
        if definition.name == kind
        for one in definition.body
        if isinstance(one, ast.FunctionDef) and one.name == "backward"
    ]
    made = [one for one in failure.nodes if one.name() == node]
    return (*found, *(("node", place_of_node(one, failure.names)[0]) for one in made[:1]))


def _custom(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    node = found["node"]
    return {"kind": node.removesuffix("Backward"), "details": _backward_of(failure, node)}


def _every_backward(failure: Failure, found: re.Match[str]) -> Details:
    customs = [node for node in failure.nodes if "torch::" not in node.name()]
    return tuple(one for node in customs for one in _backward_of(failure, node.name()))[:4]


def _without_backward(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    customs = (one for one in map(type, failure.nodes) if getattr(one, "_forward_cls", None))
    kind = next((one.__name__.removesuffix("Backward") for one in customs), "A custom function")
    nodes = failure.nodes[:1]
    details = tuple(("node", place_of_node(node, failure.names)[0]) for node in nodes)
    return {"kind": kind, "details": details}


def _marked_once(failure: Failure, found: re.Match[str]) -> Details:
    return tuple(
        ("function", f"{file}:{definition.lineno}, {definition.name}")
        for file, definition in _defined(failure, ast.FunctionDef)
        if any("once_differentiable" in ast.unparse(one) for one in definition.decorator_list)
    )


def _saved(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The argument that was to be saved, and is no tensor."""
    frame, at = failure.user, int(found["at"])
    node = None if frame is None else frame.expression
    is_apply = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    kind = frame.value_of(node.func.value) if frame is not None and is_apply else None  # type: ignore[union-attr]
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    tree = None if code is None else function_tree(code, code.co_firstlineno)
    for one in ast.walk(tree) if tree is not None else ():
        match one:
            case ast.Call(func=ast.Attribute(attr="save_for_backward"), args=given) if at < len(
                given
            ):
                name = ast.unparse(given[at])
                return {"name": name, "attribute": name if name.isidentifier() else "value"}
    return {"name": f"argument {at}", "attribute": "value"}


SITUATIONS: dict[str, Situation] = {
    "saved no tensor": SituationRow(
        "ctx.save_for_backward keeps tensors alone, and {name} is of type {given}.",
        "Keep it as an attribute: ctx.{attribute} = {name}, and read ctx.{attribute} in backward.",
        facts=_saved,
    ),
    "function gave another shape": SituationRow(
        "{kind}.backward returned a gradient of shape {given} for argument {at} of its forward, "
        "which has shape {wanted}.",
        "Return a gradient of the shape of the argument; one that was broadcast in the forward is "
        "summed over: grad.sum_to_size(shape).",
        facts=_custom,
    ),
    "function gave another number": SituationRow(
        "{kind}.backward returned {given} gradients, and its forward takes {wanted} arguments.",
        "Return one gradient for each argument after ctx, with None for those that have none.",
        facts=_custom,
    ),
    "function gave no tensor": SituationRow(
        "The backward of a custom function returned {given} where a tensor or None is expected.",
        "Return a tensor of the shape of the argument, or None.",
        details=_every_backward,
    ),
    "function without backward": SituationRow(
        "{kind} has no backward, and its output was differentiated.",
        "Write a static method backward(ctx, grad_output) that returns a gradient for each "
        "argument of forward.",
        "Where it has no gradient, call ctx.mark_non_differentiable(output) in its forward.",
        facts=_without_backward,
    ),
    "differentiated once": SituationRow(
        "A gradient was differentiated again, through a custom function whose backward is marked "
        "with @once_differentiable.",
        "Take @once_differentiable away, and write the backward in operations of PyTorch that have "
        "derivatives themselves.",
        _SECOND,
        details=_marked_once,
    ),
    "legacy function": SituationRow(
        "A torch.autograd.Function was called with a forward that is no static method, as they "
        "were written long ago.",
        "Make both static, with ctx for self: @staticmethod def forward(ctx, x, ...), and "
        "backward(ctx, grad) with one result for each argument of forward; keep numbers as "
        "ctx.name, tensors by ctx.save_for_backward.",
        "Call it by apply, with the numbers that __init__ took behind the tensors: "
        "Name.apply(x, ...).",
    ),
    "no derivative": SituationRow(
        "PyTorch has no derivative of {op}.",
        (
            "is_distance",
            "Of cdist with p=2, torch.cdist(a, b, compute_mode='use_mm_for_euclid_dist') has "
            "one; with "
            "p=1, (a[:, None] - b[None]).abs().sum(-1).",
        ),
        "Compute it by operations that have one; for a second derivative of attention, inside "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH).",
        _SECOND,
        facts=lambda failure, found: {"is_distance": "cdist" in found["op"]},
    ),
    "out with grad": SituationRow(
        "{op} was given out=, which autograd cannot record, and a tensor that requires grad.",
        "Take the result instead of out=: y = torch.{op}(...).",
        "Put torch.no_grad() around it, if no gradient is wanted.",
        about="tensors",
    ),
}
