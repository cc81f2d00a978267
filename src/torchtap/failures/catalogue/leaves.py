"""Leaves and non-leaves: flags, copies, numpy, and optimizers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.failures.assignments import looped_over
from torchtap.failures.catalogue.objects import typo_of_init
from torchtap.failures.failure import UNNAMED, Details, Explanation, Failure
from torchtap.failures.graph_cuts import without_grad
from torchtap.failures.graph_reading import leaves_of
from torchtap.failures.module_names import MODEL
from torchtap.failures.operands import Operand, shape_text
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow, first_of
from torchtap.failures.traceback_frame import MISSING

_TABLES = frozenset({"_modules", "_parameters", "_buffers"})
"""Dicts of a module whose items are found by their names."""


def _tensor(failure: Failure) -> tuple[str, Details]:
    """The name of the tensor that the operation is called on, and its description."""
    found = [one for one in failure.candidates if one.text != "self" and _may_be_tensor(one.value)]
    for one in (found or failure.tensors)[:1]:
        return failure.name_of(one), failure.details(one)
    owner = next((one.owner for one in reversed(failure.frames) if one.owner is not None), None)
    return failure.called(owner if isinstance(owner, Tensor) else None, UNNAMED), ()


def _may_be_tensor(value: object) -> bool:
    return value is MISSING or isinstance(value, Tensor)


def _integer(failure: Failure, found: re.Match[str]) -> Explanation:
    name, details = _tensor(failure)
    made, given = _made_of_floats(failure), _given_to_parameter(failure)
    floats = f"{grouped(name)}.float().requires_grad_(), or dtype=torch.float32 where it is made"
    if made or given:
        floats = made or f"nn.Parameter({grouped(given)}.float())"
    rest = "leave requires_grad out"
    if given:
        rest = f"make it a buffer: self.register_buffer(name, {given})"
    return Explanation(
        "Gradients exist of floats and complex numbers alone, and requires_grad was asked of a "
        "tensor of whole numbers.",
        (
            f"If it is to be trained or differentiated, make it of floats: {floats}.",
            f"If it is an index, a class or a mask, which have no gradient: {rest}.",
        ),
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


def _flag(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    user = failure.user
    node = None if user is None else user.expression
    if user is None or not isinstance(node, ast.Attribute):
        return {"name": UNNAMED}
    name = written(node.value)
    value = user.names.get(name)
    held = [Operand(name, value, user.depth)] if isinstance(value, Tensor) else []
    return {"name": name, "details": failure.details(*held) if held else ()}


def _numpy(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    name, details = _tensor(failure)
    whole, _, key = _element(failure).partition("[") if name == "self" else ("", "", "")
    listed = whole if key.rstrip("]").isdigit() else ""
    return {
        "name": (_element(failure) or "tensor") if name == "self" else name,
        "details": details,
        "is_forward": _is_forward(failure),
        "is_elsewhere": not _is_forward(failure),
        "listed": listed,
        "is_kept": bool(listed) or _is_item(failure, name),
        "is_single": not listed,
    }


def _is_item(failure: Failure, name: str) -> bool:
    """Return whether a name is given each item of a list, by a loop or a comprehension."""
    frame = failure.user
    return frame is not None and name.isidentifier() and looped_over(frame, name) is not None


def _is_forward(failure: Failure) -> bool:
    """Return whether a forward of the program's own was running, and no hook of one of torch."""
    running, module = failure.running, failure.module
    if running is None or running.is_torch:
        return False
    return any(one.module is module and one.code.co_name == "forward" for one in failure.frames)


def _element(failure: Failure) -> str:
    """The tensor as an element of a list or dict of the program, such as ``losses[0]``."""
    wanted = next((one.owner for one in reversed(failure.frames) if one.owner is not None), None)
    for frame in reversed(failure.frames):
        for name, value in frame.own_names.items() if frame.is_user else ():
            held = dict(enumerate(value)) if type(value) in (list, tuple) else value
            for key, one in held.items() if type(held) is dict else ():
                if one is wanted and isinstance(one, Tensor):
                    return f"{name}[{key!r}]"
    return ""


def _copy(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    owners = (one.owner for one in reversed(failure.frames))
    owner = next((one for one in owners if isinstance(one, Tensor)), None)
    kept, module = _attribute(failure, owner)
    holder, where = ("", "") if kept else _holder(failure, owner)
    held = kept or failure.called(owner)
    name = held or (f"a tensor in {holder}" if holder else "a tensor")
    is_normed = bool(kept) and _is_normed(failure, owner)
    return {
        "name": name,
        "tensor": held,
        "kept": kept,
        "is_normed": is_normed,
        "is_kept": bool(kept) and not is_normed,
        "is_of_parameters": bool(kept) and not is_normed and _is_of_parameters(failure, owner),
        "is_free": bool(held) and not kept and not holder,
        "is_unknown": not held and not holder,
        "holder": holder,
        "details": () if owner is None else (("tensor", f"{name}, {shape_text(owner)}"),),
        "where": module or where,
    }


def _holder(failure: Failure, wanted: Tensor | None) -> tuple[str, str]:
    """The list, tuple or dict that keeps a tensor, and its module; empty where none is known."""
    if wanted is None:
        return "", ""
    for _, module in failure.names.modules():
        for name, held in vars(module).items():
            if name not in _TABLES and _is_held(held, wanted):
                return f"{_variable(failure, module)}.{name}", failure.names.module(module)
    users = (frame for frame in failure.frames if frame.is_user)
    held_by_name = ((name, held) for frame in users for name, held in frame.own_names.items())
    return next((name for name, held in held_by_name if _is_held(held, wanted)), ""), ""


def _variable(failure: Failure, module: nn.Module) -> str:
    """How the program reaches a module; ``self``, as its own methods do, where it has no name."""
    text = failure.names.variable(module)
    return f"self{text.removeprefix(MODEL)}" if text.startswith(MODEL) else text


def _is_held(held: object, wanted: Tensor) -> bool:
    """Return whether a plain container has a tensor among its items."""
    values = held.values() if type(held) is dict else held
    return type(held) in (list, tuple, dict) and any(one is wanted for one in values)  # type: ignore[attr-defined]


def _is_normed(failure: Failure, wanted: Tensor | None) -> bool:
    """Return whether an old weight norm or pruning computes a tensor, before each forward."""
    return any(
        vars(module).get(getattr(hook, "name", getattr(hook, "_tensor_name", ""))) is wanted
        for _, module in failure.names.modules()
        for hook in module._forward_pre_hooks.values()
        if type(hook).__module__.startswith("torch.nn.utils.")
    )


def _is_of_parameters(failure: Failure, wanted: Tensor | None) -> bool:
    """Return whether a tensor that a module keeps is computed from parameters of that module."""
    held = set(map(id, leaves_of([] if wanted is None else [wanted])))
    return any(
        any(value is wanted for value in vars(module).values())
        and any(id(one) in held for one in module._parameters.values())
        for _, module in failure.names.modules()
    )


def _attribute(failure: Failure, wanted: Tensor | None) -> tuple[str, str]:
    """The plain attribute of a module that keeps a tensor, and the module; empty if none does."""
    for _, module in failure.names.modules():
        for name, value in vars(module).items():
            if value is wanted and wanted is not None:
                return f"{_variable(failure, module)}.{name}", failure.names.module(module)
    return "", ""


def _no_parameters(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    names = failure.names
    empty = [
        names.module(one) for _, one in names.models if not any(True for _ in one.parameters())
    ]
    hidden = [
        f"{names.module(module)} keeps modules in a plain list or dict, {name!r}"
        for _, module in names.modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and _holds_modules(value)
    ]
    hidden_names = [
        f"{names.variable(module)}.{name}"
        for _, module in names.modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and _holds_modules(value)
    ]
    plain = [
        f"self.{name}"
        for _, module in names.modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor) and not hidden_names
    ]
    typos = (typo_of_init(type(one)) for _, one in names.models)
    typo = next(filter(None, typos), "")
    details = (*(("found", one) for one in hidden[:3]), *(("without", one) for one in empty[:3]))
    used_up, frozen = _used_up(failure), without_grad(failure)
    is_filtered = bool(frozen) and not hidden and not empty and not used_up
    return {
        "kind": type(failure.frames[-1].owner).__name__,
        "used_up": used_up,
        "frozen": frozen if is_filtered else "",
        "lists": ", ".join(hidden_names),
        "plain": ", ".join(plain),
        "plain_first": plain[0] if plain else "",
        "typo": typo,
        "is_hidden": not any((used_up, is_filtered, typo, plain, hidden_names)),
        "details": details,
    }


def _used_up(failure: Failure) -> str:
    """The variable that was given and is an iterator, which gives its values once; else empty."""
    for frame in reversed(failure.frames):
        node = frame.expression
        for one in node.args if frame.is_user and isinstance(node, ast.Call) else ():
            value = frame.value_of(one)
            if isinstance(one, ast.Name) and isinstance(value, Iterator):
                return one.id
    return ""


def _holds_modules(value: object) -> bool:
    items = list(value.values()) if isinstance(value, dict) else value
    return isinstance(items, list | tuple) and any(isinstance(one, nn.Module) for one in items)


def _row(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The leaf that the optimizer was given a row of, by going over it; empty if it was not."""
    last = failure.frames[-1]
    value = last.frame.f_locals.get("param") if last.is_torch else None
    node = value.grad_fn if isinstance(value, Tensor) else None
    name = failure.called(value, "x")
    if node is None or node.name() != "UnbindBackward0":
        is_moved = node is not None and node.name() == "ToCopyBackward0"
        return {"whole": "", "name": name, "is_moved": is_moved}
    leaf = getattr(node.next_functions[0][0], "variable", None)
    state = failure.names.state(leaf)
    named = f"the parameter {state.name}" if state is not None else failure.called(leaf)
    return {"whole": named or "a leaf" if leaf is not None else ""}


def _computed(failure: Failure, found: re.Match[str]) -> Details:
    """The tensors of the program's line that were computed."""
    user = failure.user
    held = [] if user is None else [(name, one, user.depth) for name, one in user.own_names.items()]
    chosen = [
        Operand(name, value, depth)
        for name, value, depth in held
        if isinstance(value, Tensor) and value.requires_grad and not value.is_leaf
    ]
    return failure.details(*chosen[:3]) if chosen else ()


SITUATIONS: dict[str, Situation] = {
    "integer with grad": _integer,
    "flag of a non-leaf": SituationRow(
        "requires_grad was set on {name}, which is no leaf: it was computed, and requires grad "
        "because of what it was computed from.",
        "Use {name_it}.detach() where it is to have no graph.",
        "Set requires_grad on the parameter or input that it is computed from.",
        facts=_flag,
    ),
    "numpy of a graph": SituationRow(
        "{name} requires grad, and an array of numpy cannot be part of the graph.",
        (
            "is_forward",
            "Compute with PyTorch in place of numpy, if the output is made of it, as "
            "torch.stack(xs).sum(0) for np.sum(xs, 0): a detach would end the gradient here.",
        ),
        (
            "is_kept",
            "If a list keeps losses or metrics: append numbers where it is filled, loss.item().",
        ),
        (
            "listed",
            "If the values of its tensors alone are needed: [one.detach() for one in {listed}].",
        ),
        (
            "is_single",
            "If the values alone are needed (a metric, a plot, a file): {name_it}.detach().numpy() "
            "(.cpu() before it on a GPU).",
        ),
        (
            "is_elsewhere",
            "If a loss is computed from it: compute with PyTorch in place of numpy, through which "
            "no gradient comes.",
        ),
        "If no gradient is wanted at all: compute it under torch.no_grad().",
        facts=_numpy,
    ),
    "copy of a non-leaf": SituationRow(
        "deepcopy came to {name}, which was computed and carries a graph: only leaves can be "
        "copied.",
        (
            "is_normed",
            "It is computed anew before each forward, by weight_norm or pruning: use "
            "torch.nn.utils.parametrizations.weight_norm, which can be copied, or "
            "prune.remove(module, name) before the copy.",
        ),
        (
            "is_of_parameters",
            "If it is a weight that is computed from parameters: compute it in forward, and keep "
            "it in a local variable; an attribute does not follow the parameters as they train.",
        ),
        (
            "is_kept",
            "If its values are still needed: keep it without its graph, {kept} = {kept}.detach().",
        ),
        ("is_kept", "If not: set it to None before the copy."),
        (
            "holder",
            "If the values that {holder} keeps are still needed: keep them without their graph, "
            ".detach() of each where it is put there.",
        ),
        (
            "holder",
            "If a loss is computed from them, or they are no longer needed: copy before "
            "{holder} is filled, or empty it before the copy.",
        ),
        ("is_free", "Copy without the graph: {tensor}.detach().clone()."),
        (
            "is_unknown",
            "Keep results without their graph in what is copied: .detach() of each where it is "
            "kept; or copy before they are computed.",
        ),
        facts=_copy,
    ),
    "optimizer without parameters": SituationRow(
        "{kind} was given no parameters.",
        (
            "used_up",
            "{used_up} is an iterator, which gives its values once, and was read before: make a "
            "list of it where it is made or first read, {used_up} = list({used_up}).",
        ),
        (
            "frozen",
            "No parameter of {frozen} requires grad, and those that do not were left out: set "
            "requires_grad_(True) on those that are to be trained, before.",
        ),
        ("typo", "Call it __init__, with two underscores on each side: the class defines {typo}."),
        ("lists", "Make modules of the lists: nn.ModuleList, or nn.ModuleDict, of {lists}."),
        (
            "plain",
            "If {plain} is to be trained: make a parameter where it is assigned, {plain_first} = "
            "nn.Parameter(...); the result of nn.Parameter(...).to(...) is a plain tensor.",
        ),
        (
            "is_hidden",
            "If it has layers: keep them in attributes, nn.ModuleList or nn.ModuleDict, since a "
            "plain list hides them; tensors as nn.Parameter.",
        ),
        (
            "is_hidden",
            "If parameters() was read before: call it anew, a generator gives its values once.",
        ),
        facts=_no_parameters,
    ),
    "optimizer of a non-leaf": first_of(
        SituationRow(
            "An optimizer was given a row of {whole}: a loop or a star went over the tensor and "
            "took it apart, and a row of a leaf is no leaf.",
            "Give {whole} whole, without the star before it or before its parameters(): "
            "itertools.chain(net.parameters(), [w]), and not itertools.chain(*net.parameters(), "
            "*[w]).",
            when="whole",
        ),
        SituationRow(
            "An optimizer was given a tensor that was computed: it trains leaves alone, such as "
            "parameters.",
            (
                "is_moved",
                "Move or convert before requires_grad_(): torch.zeros(3, device=device, "
                "requires_grad=True), and not torch.zeros(3, requires_grad=True).to(device).",
            ),
            "If its values are to be trained: make a leaf of it, {name} = "
            "{name_it}.detach().requires_grad_(), before it is used.",
            "If what it was computed from is to be trained: give that to the optimizer, and "
            "compute {name} anew in each round.",
            details=_computed,
        ),
        facts=_row,
    ),
}
