"""Custom functions (``torch.autograd.Function``), and derivatives that there are not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.frame import shown_file
from torchtap.failures.graph_reading import place_of
from torchtap.failures.source import source_tree


def _backward_of(failure: Failure, node: str) -> tuple[tuple[str, str], ...]:
    """Return where the backward of a custom function is defined, and where it is in the graph."""
    kind = node.removesuffix("Backward")
    found = [("function", text) for text in _classes(failure, kind)]
    made = [one for one in failure.nodes if one.name() == node]
    return (*found, *(("node", place_of(one, failure.names)[0]) for one in made[:1]))


def _classes(failure: Failure, kind: str) -> Iterator[str]:
    for file in dict.fromkeys(one.file for one in failure.frames if not one.is_torch):
        tree = source_tree(file)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.ClassDef) and node.name == kind:
                for one in node.body:
                    if isinstance(one, ast.FunctionDef) and one.name == "backward":
                        yield f"{shown_file(file)}:{one.lineno}, {kind}.backward"


def _shape(failure: Failure, found: re.Match[str]) -> Explanation:
    kind = found["node"].removesuffix("Backward")
    return Explanation(
        f"{kind}.backward returned a gradient of shape {found['given']} for argument "
        f"{found['at']} of its forward, which has shape {found['wanted']}.",
        (
            "Return a gradient of the shape of the argument; one that was broadcast in the "
            "forward is summed over: grad.sum_to_size(shape).",
        ),
        _backward_of(failure, found["node"]),
    )


def _number(failure: Failure, found: re.Match[str]) -> Explanation:
    kind = found["node"].removesuffix("Backward")
    return Explanation(
        f"{kind}.backward returned {found['given']} gradients, and its forward takes "
        f"{found['wanted']} arguments.",
        ("Return one gradient for each argument after ctx, with None for those that have none.",),
        _backward_of(failure, found["node"]),
    )


def _no_tensor(failure: Failure, found: re.Match[str]) -> Explanation:
    customs = [node for node in failure.nodes if "torch::" not in node.name()]
    named = [one for node in customs for one in _backward_of(failure, node.name())]
    return Explanation(
        f"The backward of a custom function returned {found['given']} where a tensor or None is "
        f"expected.",
        ("Return a tensor of the shape of the argument, or None.",),
        tuple(named[:4]),
    )


def _no_backward(failure: Failure, found: re.Match[str]) -> Explanation:
    customs = [
        type(node).__name__
        for node in failure.nodes
        if getattr(type(node), "_forward_cls", None) is not None
    ]
    name = customs[0].removesuffix("Backward") if customs else "A custom function"
    return Explanation(
        f"{name} has no backward, and its output was differentiated.",
        (
            "Write a static method backward(ctx, grad_output) that returns a gradient for each "
            "argument of forward.",
            "Where it has no gradient, call ctx.mark_non_differentiable(output) in its forward.",
        ),
        tuple(("node", place_of(node, failure.names)[0]) for node in failure.nodes[:1]),
    )


def _once(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        "A gradient was differentiated again, through a custom function whose backward is marked "
        "with @once_differentiable.",
        (
            "Take @once_differentiable away, and write the backward in operations of PyTorch that "
            "have derivatives themselves.",
            "Leave out create_graph=True, if no second derivative is wanted.",
        ),
        tuple(("function", text) for text in _marked_once(failure)),
    )


def _marked_once(failure: Failure) -> Iterator[str]:
    for file in dict.fromkeys(one.file for one in failure.frames if not one.is_torch):
        tree = source_tree(file)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.FunctionDef) and any(
                "once_differentiable" in ast.unparse(one) for one in node.decorator_list
            ):
                yield f"{shown_file(file)}:{node.lineno}, {node.name}"


def _no_derivative(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        f"PyTorch has no derivative of {found['op']}.",
        (
            "Compute it by operations that have one; for a second derivative of attention, inside "
            "torch.nn.attention.sdpa_kernel(SDPBackend.MATH).",
            "Leave out create_graph=True, if no second derivative is wanted.",
        ),
    )


def _out(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        f"{found['op']} was given out=, which autograd cannot record, and a tensor that requires "
        f"grad.",
        (
            f"Take the result instead of out=: y = torch.{found['op']}(...).",
            "Put torch.no_grad() around it, if no gradient is wanted.",
        ),
        failure.details(),
    )


SITUATIONS = {
    "function gave another shape": _shape,
    "function gave another number": _number,
    "function gave no tensor": _no_tensor,
    "function without backward": _no_backward,
    "differentiated once": _once,
    "no derivative": _no_derivative,
    "out with grad": _out,
}
