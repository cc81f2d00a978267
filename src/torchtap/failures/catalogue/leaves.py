"""Leaves and non-leaves: flags, copies, numpy, and optimizers."""

from __future__ import annotations

import ast
import re

from torch import Tensor, nn

from torchtap.failures.failure import UNNAMED, Explanation, Failure
from torchtap.failures.frame import MISSING
from torchtap.failures.operands import Operand, shape_of
from torchtap.failures.source import grouped, written


def _tensor(failure: Failure) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The name of the tensor that the operation is called on, and its description."""
    found = [one for one in failure.operands if one.text != "self" and _may_be_tensor(one.value)]
    found = found or failure.tensors
    if not found:
        owner = next((one.owner for one in reversed(failure.frames) if one.owner is not None), None)
        held = failure.holders(owner) if isinstance(owner, Tensor) else []
        return (held[-1] if held else UNNAMED), ()
    return failure.name_of(found[0]), failure.details(found[0])


def _may_be_tensor(value: object) -> bool:
    return value is MISSING or isinstance(value, Tensor)


def _integer(failure: Failure, found: re.Match[str]) -> Explanation:
    name, details = _tensor(failure)
    made = _made_of_floats(failure)
    way = f"Make it of floats: {made}."
    if not made:
        way = (
            f"Make it a tensor of floats: {grouped(name)}.float().requires_grad_(), or "
            f"dtype=torch.float32 where it is made."
        )
        given = _given_to_parameter(failure)
        if given:
            way = f"Make it of floats: nn.Parameter({grouped(given)}.float())."
    return Explanation(
        "Gradients exist of floats and complex numbers alone, and requires_grad was asked of a "
        "tensor of whole numbers.",
        (way, "Leave requires_grad out: an index, a class or a mask has no gradient."),
        () if made else details,
    )


def _given_to_parameter(failure: Failure) -> str:
    """The text of what ``nn.Parameter`` was given; empty where it was not that call."""
    frame = failure.user
    node = None if frame is None else frame.expression
    if frame is None or not isinstance(node, ast.Call) or not node.args:
        return ""
    is_parameter = frame.value_of(node.func) is nn.Parameter
    return written(node.args[0], frame.file) if is_parameter else ""


def _made_of_floats(failure: Failure) -> str:
    """The call that makes a tensor with ``requires_grad=True``, with a dtype of floats."""
    node = None if failure.user is None else failure.user.expression
    if not isinstance(node, ast.Call) or "requires_grad" not in {one.arg for one in node.keywords}:
        return ""
    if isinstance(node.func, ast.Attribute | ast.Name) and written(node.func)[-9:] == "Parameter":
        return ""
    dtype = ast.keyword("dtype", ast.parse("torch.float32", mode="eval").body)
    others = [one for one in node.keywords if one.arg != "dtype"]
    return ast.unparse(ast.Call(node.func, node.args, [dtype, *others]))


def _flag(failure: Failure, found: re.Match[str]) -> Explanation:
    node = None if failure.user is None else failure.user.expression
    name = written(node.value) if isinstance(node, ast.Attribute) else UNNAMED
    return Explanation(
        f"requires_grad was set on {name}, which is no leaf: it was computed, and requires grad "
        "because of what it was computed from.",
        (
            f"Use {grouped(name)}.detach() where it is to have no graph.",
            "Set requires_grad on the parameter or input that it is computed from.",
        ),
        _held(failure, name),
    )


def _held(failure: Failure, name: str) -> tuple[tuple[str, str], ...]:
    depth = failure.user_depth
    value = None if depth is None else failure.frames[depth].names.get(name)
    if isinstance(value, Tensor) and depth is not None:
        return failure.details(Operand(name, value, depth))
    return ()


def _numpy(failure: Failure, found: re.Match[str]) -> Explanation:
    name, details = _tensor(failure)
    name = (_element(failure) or "tensor") if name == "self" else name
    return Explanation(
        f"{name} requires grad, and an array of numpy cannot be part of the graph.",
        (
            f"Take the values without the graph: {grouped(name)}.detach().numpy() (.cpu() "
            f"before it on a GPU).",
            "Compute it under torch.no_grad(), if no gradient is wanted at all.",
        ),
        details,
    )


def _element(failure: Failure) -> str:
    """The tensor as an element of a list or dict of the program, such as ``losses[0]``."""
    wanted = next((one.owner for one in reversed(failure.frames) if one.owner is not None), None)
    for frame in reversed(failure.frames):
        for name, value in {} if frame.is_torch else frame.own_names.items():
            held = dict(enumerate(value)) if type(value) in (list, tuple) else value
            for key, one in held.items() if type(held) is dict else ():
                if one is wanted and isinstance(one, Tensor):
                    return f"{name}[{key!r}]"
    return ""


def _copy(failure: Failure, found: re.Match[str]) -> Explanation:
    owner = next(
        (one.owner for one in reversed(failure.frames) if isinstance(one.owner, Tensor)), None
    )
    held = [] if owner is None else failure.holders(owner)
    kept = _attribute(failure, owner)
    name = kept[0] if kept else (held[-1] if held else "a tensor")
    it = name if kept or held else "tensor"
    ways = [f"Copy without the graph: {it}.detach().clone()."]
    if kept:
        ways = [
            f"Keep it without its graph: {name} = {name}.detach(), or set it to None before the "
            f"copy.",
            "Register it as a buffer of a detached tensor: register_buffer.",
        ]
    ways.append(
        "For weight norm, use torch.nn.utils.parametrizations.weight_norm, which can be copied."
    )
    return Explanation(
        f"deepcopy came to {name}, which was computed and carries a graph: only leaves can be "
        f"copied.",
        tuple(ways),
        () if owner is None else (("tensor", f"{name}, {shape_of(owner)}"),),
        kept[1] if kept else "",
    )


def _attribute(failure: Failure, wanted: Tensor | None) -> tuple[str, str] | None:
    """The module that keeps a tensor in a plain attribute: the attribute, and the module."""
    for _, module in failure.names.modules():
        for name, value in vars(module).items():
            if value is wanted and wanted is not None:
                return f"{failure.names.variable(module)}.{name}", failure.names.module(module)
    return None


def _no_parameters(failure: Failure, found: re.Match[str]) -> Explanation:
    kind = type(failure.frames[-1].owner).__name__
    empty = [
        failure.names.module(one)
        for label, one in failure.names.models
        if not any(True for _ in one.parameters())
    ]
    hidden = [
        f"{failure.names.module(module)} keeps modules in a plain list or dict, {name!r}"
        for _, module in failure.names.modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and _holds_modules(value)
    ]
    return Explanation(
        f"{kind} was given no parameters.",
        (
            "Keep submodules in nn.ModuleList, nn.ModuleDict or attributes, and tensors as "
            "nn.Parameter: a plain list hides them.",
            "Iterate over model.parameters() anew: a generator that was read once is empty.",
        ),
        (*(("found", one) for one in hidden[:3]), *(("without", one) for one in empty[:3])),
    )


def _holds_modules(value: object) -> bool:
    items = list(value.values()) if isinstance(value, dict) else value
    return isinstance(items, list | tuple) and any(isinstance(one, nn.Module) for one in items)


def _not_leaf(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        "An optimizer was given a tensor that was computed: it trains leaves alone, such as "
        "parameters.",
        (
            "Make a leaf of it: x = x.detach().requires_grad_(), before it is used.",
            "Move or convert before requires_grad_(): torch.zeros(3, device=device, "
            "requires_grad=True), and not torch.zeros(3, requires_grad=True).to(device).",
        ),
        _given(failure),
    )


def _given(failure: Failure) -> tuple[tuple[str, str], ...]:
    depth = failure.user_depth
    if depth is None:
        return ()
    frame = failure.frames[depth]
    found = [
        Operand(name, value, depth)
        for name, value in frame.own_names.items()
        if isinstance(value, Tensor) and value.requires_grad and not value.is_leaf
    ]
    return failure.details(*found[:3]) if found else ()


SITUATIONS = {
    "integer with grad": _integer,
    "flag of a non-leaf": _flag,
    "numpy of a graph": _numpy,
    "copy of a non-leaf": _copy,
    "optimizer without parameters": _no_parameters,
    "optimizer of a non-leaf": _not_leaf,
}
