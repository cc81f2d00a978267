"""A backward that cannot run: no graph, a graph that is freed, no number to begin at."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.failures.assignments import assignments_of
from torchtap.failures.failure import Details, Failure
from torchtap.failures.followed_values import end_of
from torchtap.failures.graph_cuts import cuts_in, without_grad
from torchtap.failures.graph_reading import leaves_of, nodes_of, place_of_node
from torchtap.failures.operands import Operand, shape_text
from torchtap.failures.parsed_source import grouped, last_name, written
from torchtap.failures.scopes import Expression, scope_of
from torchtap.failures.situation_row import Situation, SituationRow, first_of


def _root(failure: Failure, tensor: Tensor | None, otherwise: str) -> dict[str, Any]:
    """The tensor that a backward began at: its name, shape and origin."""
    name = failure.called(tensor, otherwise)
    made = ""
    if tensor is not None:
        made = failure.origin(Operand("it", tensor, len(failure.frames) - 1)).text
    text = f"{name}, {shape_text(tensor)}, {made}".rstrip(", ")
    shape = shape_text(tensor)
    return {"name": name, "shape": shape, "made": made, "details": (("tensor", text),)}


def _differentiated(failure: Failure, found: re.Match[str]) -> Tensor | None:
    """The tensor of the number that the message says."""
    at = int(found["at"])
    return failure.differentiated[at] if at < len(failure.differentiated) else None


def _called_on(failure: Failure) -> str:
    """Return what the program differentiates, as it is written; ``output`` if it is not seen."""
    frame = failure.user
    node = None if frame is None else frame.expression
    if frame is None or not isinstance(node, ast.Call):
        return "output"
    given = node.args[0] if node.args else None
    is_one = given is not None and not isinstance(given, ast.List | ast.Tuple | ast.Starred)
    if given is not None and is_one and written(node.func).endswith("autograd.grad"):
        return written(given, frame.file)
    is_method = isinstance(node.func, ast.Attribute) and node.func.attr == "backward"
    return written(node.func.value, frame.file) if is_method else "output"  # type: ignore[attr-defined]


# ---------------------------------------------------------------------- no graph


def _no_graph(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    tensor = _differentiated(failure, found)
    facts = _root(failure, tensor, "the loss")
    is_inference = tensor is not None and tensor.is_inference()
    is_fractional = tensor is None or tensor.is_floating_point() or tensor.is_complex()
    is_gradient = "autograd.grad(" in facts["made"]
    if tensor is not None and not facts["made"]:
        inner = _gradient_in(failure)
        is_gradient, facts = bool(inner), {**facts, **inner}
    return {
        **facts,
        "is_whole": not is_fractional and not is_inference,
        "is_linear": is_gradient and "create_graph" in facts["made"],
        "is_gradient": is_gradient,
        "is_inference": is_inference,
        "frozen": without_grad(failure),
    }


def _gradient_in(failure: Failure) -> Mapping[str, Any]:
    """Words of the gradient that an expression which is differentiated is computed from."""
    frame = failure.user
    node = None if frame is None else frame.expression
    for one in ast.walk(node) if frame is not None and node is not None else ():
        value = frame.value_of(one) if isinstance(one, ast.Name) else None  # type: ignore[union-attr]
        if isinstance(value, Tensor) and isinstance(one, ast.Name) and not value.requires_grad:
            facts = _root(failure, value, one.id)
            if "autograd.grad(" in facts["made"]:
                return facts
    return {}


def _modes(failure: Failure, found: re.Match[str]) -> Details:
    return tuple(("cut", one.text) for one in cuts_in(failure) if one.is_mode)


def _cuts(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The places that may have cut the graph, each with its way out."""
    cuts = cuts_in(failure)
    shown = (("cut" if one.is_on_way else "perhaps", one.text) for one in cuts[:4])
    ways = list(dict.fromkeys(one.way for one in cuts[:3]))
    if len(ways) > 1 and all(one.is_on_way for one in cuts[:3]):
        ways[0] += " The other cuts are to be mended, too: each of them ends the graph."
    return {
        "ways": tuple(ways),
        "is_off": not cuts and not torch.is_grad_enabled(),
        "is_unknown": not cuts and torch.is_grad_enabled(),
        "details": tuple(shown),
        "where": ", ".join(dict.fromkeys(one.module for one in cuts if one.module)),
    }


def _inputs(failure: Failure) -> list[tuple[str, Tensor]]:
    """The inputs that ``torch.autograd.grad`` was given, by name."""
    for frame in failure.frames:
        if frame.is_torch and frame.code.co_name == "grad":
            given = frame.frame.f_locals.get("inputs")
            keyed = _keyed(failure, given)
            tensors = (given,) if isinstance(given, Tensor) else tuple(given or ())
            states = [failure.names.state(one) for one in tensors]
            return [
                (
                    keyed.get(id(one)) or failure.called(one, f"input {at}")
                    if state is None
                    else state.name,
                    one,
                )
                for at, (one, state) in enumerate(zip(tensors, states, strict=True))
                if isinstance(one, Tensor)
            ]
    return []


def _keyed(failure: Failure, given: object) -> dict[int, str]:
    """The names of tensors that are values of a dict of the program: ``params['fc.weight']``."""
    frame = failure.user
    held = {} if frame is None or isinstance(given, Tensor) else frame.own_names
    return {
        id(one): f"{name}[{key!r}]"
        for name, value in held.items()
        if isinstance(value, dict)
        for key, one in value.items()
        if isinstance(one, Tensor)
    }


def _input_without_grad(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    inputs = _inputs(failure)
    details = tuple(("input", f"{name}, {shape_text(one)}") for name, one in inputs[:4])
    for name, one in inputs:
        if not one.requires_grad:
            state, it = failure.names.state(one), grouped(name)
            if state is not None:
                it = f"{failure.names.variable(state.module)}.{name.rpartition('.')[2]}"
            is_whole = not one.is_floating_point() and not one.is_complex()
            known = {"is_whole": is_whole, "is_fractional": not is_whole}
            return {"name": name, "x": it, "details": details, **known}
    return {"name": "one of the inputs", "x": "x", "details": details, "is_fractional": True}


def _input_not_used(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    at = int(found["at"] or 0)
    name, tensor = [*_inputs(failure)[at : at + 1], ("an input", None)][0]
    node = None if tensor is None else tensor.grad_fn
    is_copy = node is not None and node.name() == "CloneBackward0"
    is_named = not name.startswith("input ")  # Others are made in the call, for it alone.
    is_state = failure.names.state(tensor) is not None
    reached = _reached(failure)
    source = _taken_from(reached, tensor)
    held = [] if is_state else [key for key, one in reached if one.is_leaf]
    linear = "" if tensor is None or is_state else _linear_in(failure, tensor)
    cut = "" if linear or is_state or source or is_copy else _cut_of(failure, name)
    return {
        "name": name,
        "linear": linear,
        "because": f": {linear}" if linear else "",
        "ways": (cut,) if cut else (),
        "is_state": is_state,
        "source": "" if is_copy else source,
        "is_copy": is_copy and is_named,
        "is_copied_here": is_copy and not is_named,
        "trained": _state_behind(failure, tensor) if is_copy and is_named else "",
        "others": "" if source or is_copy else ", ".join(held[:3]),
        "is_other": not is_state and not linear,
        "is_apart": not is_state and not linear and not cut,
        "maker": "" if is_state or source or is_copy else _state_behind(failure, tensor),
        "where": failure.names.holder(tensor),
        "details": tuple(
            ("leads there", f"{key}, {shape_text(one)}") for key, one in reached[:3] if not is_state
        ),
    }


def _linear_in(failure: Failure, tensor: Tensor) -> str:
    """Say so where the output is a gradient by the same tensor, which it does not depend on."""
    frame, call = failure.user, None if failure.user is None else failure.user.expression
    first = call.args[0] if isinstance(call, ast.Call) and call.args else None
    if frame is None or first is None:
        return ""
    scope = scope_of(frame, failure.frames)
    root = first.value if isinstance(first, ast.Subscript) else first
    one = end_of(Expression(root, scope))
    made = one.node if isinstance(one.node, ast.Call) else None
    if made is None or last_name(made.func) != "grad" or len(made.args) < 2:
        return ""
    output, by = made.args[:2]
    value, given = one.scope.value_of(output), one.scope.value_of(by)
    by_it = given is tensor or (isinstance(given, list) and any(x is tensor for x in given))
    leads = isinstance(value, Tensor) and any(leaf is tensor for leaf in leaves_of([value]))
    if not by_it or not leads:
        return ""
    name, whole = written(by, one.scope.file), written(output, one.scope.file)
    return (
        f"{written(root, frame.file)} is the gradient of {whole} by {name}, and {whole} is linear "
        f"in {name}, so that its gradient is constant and the next derivative zero"
    )


def _cut_of(failure: Failure, name: str) -> str:
    """Return the way out where the program cuts the graph at the very tensor that is asked for."""
    user = failure.user
    for node in ast.walk(user.function) if user is not None and user.function is not None else ():
        match node:
            case (
                ast.Call(
                    func=ast.Attribute(value=ast.Name(id=cut), attr="detach" | "numpy" | "tolist")
                )
                | ast.Attribute(value=ast.Name(id=cut), attr="data")
            ) if cut == name:
                line, text = node.lineno, written(node, user.file)  # type: ignore[union-attr]
                if line < user.line:  # type: ignore[union-attr]
                    return (
                        f"If the output is computed from {text} of line {line}, give {name} itself "
                        "there: what is cut from the graph leads nowhere."
                    )
    return _asked_too_late(failure, name)


def _asked_too_late(failure: Failure, name: str) -> str:
    """Return the way out where a line asks for a graph after the output was made; else empty."""
    frame, call = failure.user, None if failure.user is None else failure.user.expression
    first = call.args[0] if isinstance(call, ast.Call) and call.args else None
    made = assignments_of(frame, first.id) if frame and isinstance(first, ast.Name) else []
    for node in frame.calls_of("requires_grad_") if frame is not None and made else ():
        text = written(node)
        if text.startswith(f"{name}.") and made[-1].line < node.lineno < frame.line:  # type: ignore[union-attr]
            return (
                f"{text} of line {node.lineno} comes behind line {made[-1].line}, which computes "
                f"{written(first)}: call it before."
            )
    return ""


def _reached(failure: Failure) -> list[tuple[str, Tensor]]:
    """The variables of the program that lead to what is differentiated."""
    roots = failure.differentiated
    nodes, leaves = set(nodes_of(roots)), set(map(id, leaves_of(roots)))
    frames = [one for one in failure.frames if one.is_user]
    named = {
        key: value
        for frame in frames
        for key, value in frame.own_names.items()
        if isinstance(value, Tensor) and not any(value is root for root in roots)
        if value.grad_fn in nodes or id(value) in leaves
    }
    return list(named.items())


def _state_behind(failure: Failure, tensor: Tensor | None) -> str:
    """The parameter that an input was computed from and that leads to the output."""
    if tensor is None or tensor.grad_fn is None:
        return ""
    reached = set(map(id, leaves_of(failure.differentiated)))
    own = (one for one in leaves_of([tensor]) if id(one) in reached)
    states = filter(None, map(failure.names.state, own))
    return next((f"the parameter {one.name}" for one in states), "")


def _taken_from(reached: list[tuple[str, Tensor]], tensor: Tensor | None) -> str:
    """The variable that leads to the output and that an input was taken from; empty if none."""
    if tensor is None or tensor.grad_fn is None:
        return ""
    nodes, leaves = set(nodes_of([tensor])), set(map(id, leaves_of([tensor])))
    found = [key for key, one in reached if one.grad_fn in nodes or id(one) in leaves]
    return next(iter(found), "")


# ---------------------------------------------------------------------- where a backward begins


def _no_scalar(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    root = next((one for one in failure.differentiated if one.numel() != 1), None)
    is_grad = any(one.is_torch and one.code.co_name == "grad" for one in failure.frames)
    size = () if root is None else tuple(root.shape)
    given = [one for _, one in _inputs(failure)]
    # A column for each input column, or one number for each row, is a derivative by row.
    is_of_rows = len(size) != 2 or size[1] == 1 or any(one.shape == root.shape for one in given)  # type: ignore[union-attr]
    return {
        **_root(failure, root, _called_on(failure)),
        "is_grad": is_grad,
        "is_output": _is_output(failure, root),
        "columns": "" if is_of_rows else size[1],
        "is_of_rows": is_of_rows,
        "element": ", ".join(["0"] * (len(size) - 1) + ["k"]),
    }


def _is_output(failure: Failure, root: Tensor | None) -> bool:
    """Return whether a tensor is what a module returned that computes no loss."""
    at = len(failure.frames) - 1
    module = None if root is None else failure.origin(Operand("it", root, at)).module
    return isinstance(module, nn.Module) and not type(module).__name__.endswith("Loss")


def _gradient_shape(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return _root(failure, _differentiated(failure, found), _called_on(failure))


def _nodes(failure: Failure, found: re.Match[str]) -> Details:
    nodes = [node for node in failure.nodes if node.name() == found["node"]]
    places = dict.fromkeys(place_of_node(node, failure.names)[0] for node in nodes)
    return tuple(("node", one) for one in list(places)[:3])


SITUATIONS: dict[str, Situation] = {
    "no graph": first_of(
        SituationRow(
            "backward was called on {name}, which holds whole numbers ({shape}) and has no "
            "gradient.",
            "Compute the loss from floats: from logits, and not from argmax or counts.",
            when="is_whole",
        ),
        SituationRow(
            "{name} is a gradient that depends on nothing that requires grad: what was "
            "differentiated is linear in it.",
            "If it should depend on parameters: set requires_grad_(True) on them before.",
            "If not, leave the second backward out: this derivative is zero.",
            when="is_linear",
        ),
        SituationRow(
            "{name} is a gradient without a graph of its own: torch.autograd.grad made it without "
            "create_graph.",
            "Give create_graph=True to the torch.autograd.grad that makes it.",
            when="is_gradient",
        ),
        SituationRow(
            "{name} was computed in inference mode, so there is no graph to go back through.",
            "Compute what is trained outside of torch.inference_mode().",
            "Where only some of it must have no graph, put torch.no_grad() around that part.",
            when="is_inference",
            details=_modes,
        ),
        SituationRow(
            "{name} has no graph: no parameter of {frozen} requires grad.",
            "If parameters are to be trained: set requires_grad_(True) on them before the forward.",
            "If the gradient of an input is wanted (a saliency map, an attack, forces): set "
            "requires_grad_(True) on the input before the forward.",
            when="frozen",
        ),
        SituationRow(
            "{name} has no graph: nothing that requires grad leads to it.",
            (
                "is_off",
                "Grad mode is off here, as torch.set_grad_enabled(False) leaves it: call "
                "torch.set_grad_enabled(True) before what is trained.",
            ),
            (
                "is_unknown",
                "Compute it from parameters, or from inputs with requires_grad_(True), with grad "
                "mode on.",
            ),
            facts=_cuts,
        ),
        facts=_no_graph,
    ),
    "input without grad": SituationRow(
        "A gradient with respect to {name} was asked for, which does not require grad.",
        (
            "is_whole",
            "It holds whole numbers, which have no gradient: ask for that of what is computed from "
            "it, such as the output of the embedding.",
        ),
        ("is_fractional", "Call {x}.requires_grad_() before the forward that computes the output."),
        "Leave {name} out of the inputs, if its gradient is not needed.",
        facts=_input_without_grad,
    ),
    "input not used": SituationRow(
        "A gradient with respect to {name} was asked for, and no path leads from the output to it"
        "{because}.",
        ("is_copied_here", "Give the tensor that it was copied from: without .clone()."),
        (
            "is_copy",
            "If the gradient of the tensor is meant that it was copied from: give that, without "
            ".clone().",
        ),
        (
            "trained",
            "If the output is to be computed with the copy, as in meta learning: "
            "torch.func.functional_call(model, params, inputs), with {name} among params.",
        ),
        (
            "source",
            "{name} was taken from {source}, which leads to the output itself: ask for the "
            "gradient of {source} and take that part of it, or take {name} first and compute the "
            "output from it.",
        ),
        (
            "others",
            "{others} leads to the output: if it holds the values of {name}, ask for its gradient, "
            "or make it from {name} without .detach(), .data and torch.tensor(...).",
        ),
        (
            "is_state",
            "If the output need not depend on {name} here: allow_unused=True, and leave out "
            "gradients that are None.",
        ),
        ("is_state", "If it should be trained: use it in the forward on the way to the output."),
        (
            "maker",
            "{name} was computed from {maker}, which leads to the output itself: give it to what "
            "computes the output, as by torch.func.functional_call(model, params, inputs), or "
            "model(inputs, params=params) where the forward takes them.",
        ),
        ("is_apart", "Compute the output from the very tensor {name}."),
        (
            "linear",
            "If the derivative is to be zero then: allow_unused=True, with materialize_grads=True.",
        ),
        (
            "linear",
            "If the model is not to be linear in {name}: put an activation between its layers, "
            "such as nn.Tanh(), whose second derivative is not zero.",
        ),
        (
            "is_other",
            "If the output need not depend on it: allow_unused=True; its gradient is then None (or "
            "zeros with materialize_grads=True).",
        ),
        facts=_input_not_used,
    ),
    "no scalar": first_of(
        SituationRow(
            "torch.autograd.grad was asked for gradients of {name}, which is {shape} and not one "
            "number.",
            (
                "columns",
                "Differentiate one column at a time: {name_it}[:, k].sum(), for k in "
                "range({columns}), with retain_graph=True.",
            ),
            (
                "is_of_rows",
                "Give grad_outputs=torch.ones_like({name}): the derivative of each element, where "
                "each depends on its own part of the input alone.",
            ),
            "If one number is meant: {name_it}.sum(), or {name_it}.mean() of a mean.",
            (
                "columns",
                "If the sum over all elements is meant: grad_outputs=torch.ones_like({name}).",
            ),
            when="is_grad",
        ),
        SituationRow(
            "backward was called on {name}, which is {shape} and not one number.",
            (
                "is_output",
                "If it is the output of the model: compute a loss of it and the targets, and call "
                "backward on that, loss = criterion({name}, target).",
            ),
            "If it holds the losses of several samples: reduce it, {name_it}.mean().backward(), or "
            ".sum().",
            "If the gradient of one element is meant, such as the score of a class: "
            "{name_it}[{element}].backward().",
            "If the gradient to begin with is known: {name_it}.backward(gradient), of the same "
            "shape.",
        ),
        facts=_no_scalar,
    ),
    "gradient of another shape": SituationRow(
        "The gradient given for {name} has shape {given}, and {name} has {wanted}.",
        "Give a gradient of the shape of the output: torch.ones_like({name}).",
        "Reduce {name} to one number first: {name_it}.sum().backward().",
        facts=_gradient_shape,
    ),
    "nan in backward": SituationRow(
        "The backward of {node} computed NaN (anomaly detection is on).",
        "Keep the input of that operation away from where its derivative is infinite: for example "
        "(x + 1e-6).sqrt(), or x.clamp(min=1e-6).",
        "Look at the values that arrive there: tt.watch with to=tt.Stats().",
        details=_nodes,
    ),
}
