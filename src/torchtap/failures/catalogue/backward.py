"""A backward that cannot run: no graph, a graph that is freed, no number to begin at."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchtap.core.source_files import shown_file
from torchtap.failures.assignments import LOOPS, assignments_of
from torchtap.failures.failure import Details, Failure
from torchtap.failures.graph_cuts import cuts_in, without_grad
from torchtap.failures.graph_reading import (
    FREED,
    Node,
    leaves_of,
    nodes_of,
    place_of_node,
    saved_by,
)
from torchtap.failures.operands import Operand, shape_text
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow, first_of
from torchtap.failures.traceback_frame import TracebackFrame, line_of


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
    return {
        **facts,
        "is_whole": not is_fractional and not is_inference,
        "is_linear": is_gradient and "create_graph" in facts["made"],
        "is_gradient": is_gradient,
        "is_inference": is_inference,
        "frozen": without_grad(failure),
    }


def _modes(failure: Failure, found: re.Match[str]) -> Details:
    return tuple(("cut", one.text) for one in cuts_in(failure) if one.is_mode)


def _cuts(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The places that may have cut the graph, each with its way out."""
    cuts = cuts_in(failure)
    shown = (("cut" if one.is_on_way else "perhaps", one.text) for one in cuts[:4])
    return {
        "ways": tuple(dict.fromkeys(one.way for one in cuts[:3])),
        "is_unknown": not cuts,
        "details": tuple(shown),
        "where": ", ".join(dict.fromkeys(one.module for one in cuts if one.module)),
    }


def _inputs(failure: Failure) -> list[tuple[str, Tensor]]:
    """The inputs that ``torch.autograd.grad`` was given, by name."""
    for frame in failure.frames:
        if frame.is_torch and frame.code.co_name == "grad":
            given = frame.frame.f_locals.get("inputs")
            tensors = given if isinstance(given, tuple | list) else (given,)
            states = [failure.names.state(one) for one in tensors]
            return [
                (failure.called(one, f"input {at}") if state is None else state.name, one)
                for at, (one, state) in enumerate(zip(tensors, states, strict=True))
                if isinstance(one, Tensor)
            ]
    return []


def _input_without_grad(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    inputs = _inputs(failure)
    details = tuple(("input", f"{name}, {shape_text(one)}") for name, one in inputs[:4])
    for name, one in inputs:
        if not one.requires_grad:
            state, it = failure.names.state(one), grouped(name)
            if state is not None:
                it = f"{failure.names.variable(state.module)}.{name.rpartition('.')[2]}"
            return {"name": name, "x": it, "details": details}
    return {"name": "one of the inputs", "x": "x", "details": details}


def _input_not_used(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    at = int(found["at"] or 0)
    name, tensor = [*_inputs(failure)[at : at + 1], ("an input", None)][0]
    node = None if tensor is None else tensor.grad_fn
    is_copy = node is not None and node.name() == "CloneBackward0"
    return {"name": name, "is_copy": is_copy, "where": failure.names.holder(tensor)}


# ---------------------------------------------------------------------- a graph that is freed


_ROUND = "in an earlier round of the loop"


class _Carrier(NamedTuple):
    """A variable or attribute that brings the graph of an earlier backward into this one."""

    name: str
    tensor: Tensor | None
    is_tuple: bool = False
    is_above: bool = False
    """It is assigned above the loop alone."""


class _Earlier(NamedTuple):
    """A call of a backward in a running function: its line, and what it begins at, if known."""

    line: int
    text: str
    tensor: Tensor | None


def _twice(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """How the graph comes to be one that an earlier backward freed."""
    if not failure.differentiated:
        return {}
    root = failure.differentiated[0]
    name = failure.called(root, "the loss")
    again, other, carrier = _earlier_backward(failure, root)
    nodes, is_certain = failure.nodes, bool(again)
    if other is not None:
        before = set(nodes_of([other]))
        nodes = [one for one in nodes if one in before]
    elif carrier is not None and carrier.tensor is not None and carrier.tensor is not root:
        nodes, is_certain = nodes_of([carrier.tensor]), True
    freed, where = _freed_in(failure, nodes, is_certain=is_certain)
    facts = {"name": name, "is_freed": True, "details": freed, "where": where}
    if again:
        label = "first" if other is None else "earlier"
        found_out = {"is_round": again.endswith(_ROUND), "details": ((label, again), *freed)}
        return {**facts, f"is_{label}": True, **found_out}
    is_in_loop = any(_loop_at(one) is not None for one in failure.frames if not one.is_torch)
    detach = "Detach what was computed before that backward and is used again: x = x.detach()"
    if carrier is None:
        return {**facts, "is_freed_in_loop": is_in_loop, "detach": detach}
    short = carrier.name
    detached = f"{short} = {short}.detach()"
    if carrier.is_tuple:
        detached = f"{short} = tuple(one.detach() for one in {short})"
    return {
        **facts,
        "short": short,
        "detached": detached,
        "detach": f"Detach {short} before it is used again: {detached}",
        "lost": _only_through(failure, root, carrier),
        "is_carried": True,
        "is_carried_in_loop": is_in_loop,
        "is_above": carrier.is_above and is_in_loop,
    }


def _only_through(failure: Failure, root: Tensor, carrier: _Carrier) -> str:
    """The module whose parameters a loss reaches through one tensor alone; empty if there is none.

    Were that tensor detached, they would get no gradient of the loss.
    """
    node = None if carrier.tensor is None else carrier.tensor.grad_fn
    if carrier.tensor is None or node is None or carrier.is_tuple:
        return ""
    around = {id(one) for one in leaves_of([root], without=node)}
    lost = (one for one in leaves_of([carrier.tensor]) if id(one) not in around)
    return next(filter(None, map(failure.names.holder, lost)), "")


def _freed_in(failure: Failure, nodes: list[Node], *, is_certain: bool) -> tuple[Details, str]:
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


def _earlier_backward(failure: Failure, root: Tensor) -> tuple[str, Tensor | None, _Carrier | None]:
    """Find in the source the line that went through this loss before, or what else brings it in.

    Freed values cannot tell: the backward that failed has freed what it had passed.

    Returns:
        the line of an earlier backward, the other tensor that it began at (``None`` for this
        one), and what carries its graph into this one.
    """
    for frame in failure.frames:
        names = [key for key, value in frame.own_names.items() if value is root]
        made = (
            [] if frame.is_torch else [one for key in names for one in assignments_of(frame, key)]
        )
        if len(made) != 1:
            continue
        loop, first = _loop_at(frame), made[0].line
        calls = list(_earlier_calls(frame))[::-1]
        for call in calls:
            if call.tensor is root and first <= call.line:
                return call.text, None, None
        if loop is not None and not _is_inside(first, loop):
            place = f"{shown_file(frame.file)}:{frame.line}"
            return f"{place}, {_ROUND}", None, None
        carrier = _carrier(failure, frame, first, calls)
        saving = {one for one in failure.nodes if any(True for _ in saved_by(one))}
        for call in calls if carrier is None else ():
            other = call.tensor
            if other is not None and other is not root and not saving.isdisjoint(nodes_of([other])):
                return call.text, other, None
        return "", None, carrier
    return "", None, None


def _carrier(
    failure: Failure, frame: TracebackFrame, made: int, calls: Sequence[_Earlier]
) -> _Carrier | None:
    """The variable of the graph that is older than an earlier backward.

    One that is known to be older comes first; then one that a loop computes from its own last
    value; then what a module keeps.

    Args:
        failure: the exception.
        frame: of the function that calls the backwards.
        made: the line that computes the loss.
        calls: the earlier backwards.
    """
    inside, loop = set(failure.nodes), _loop_at(frame)
    earlier = [one for one in calls if one.line < made]
    starts = [one.tensor for one in earlier if one.tensor is not None]
    older = inside.intersection(nodes_of(starts))
    # What is assigned above the loop, or above an earlier backward, was not computed anew since.
    limit = max(0 if loop is None else loop.lineno, *(one.line for one in earlier), 0)
    owner = None if isinstance(frame.owner, Tensor) else getattr(frame.owner, "__dict__", None)
    kept = [(f"self.{name}", value) for name, value in (owner or {}).items()]
    for name, value in (*frame.own_names.items(), *kept):
        for one in value if type(value) in (tuple, list) else (value,):
            if not isinstance(one, Tensor) or one.grad_fn not in inside:
                continue
            lines = [given.line for given in assignments_of(frame, name)]
            is_before = bool(lines) and max(lines) < limit
            if is_before or one.grad_fn in older or name.startswith("self."):
                is_above = loop is not None and bool(lines) and max(lines) < loop.lineno
                return _Carrier(name, one, isinstance(value, tuple | list), is_above)
    for name in () if loop is None else _of_own_last_value(frame, loop, inside):
        return _Carrier(name, None, isinstance(frame.names.get(name), tuple | list))
    for _, module in failure.names.modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.grad_fn in inside:
                return _Carrier(f"{failure.names.variable(module)}.{name}", None)
    return None


def _earlier_calls(frame: TracebackFrame) -> Iterator[_Earlier]:
    """Calls of a backward in a running function, before the running one, that free the graph."""
    here = frame.expression
    column = here.col_offset if isinstance(here, ast.expr) else 0
    for node in frame.calls_of("backward", "grad"):
        keeps = any(one.arg in ("retain_graph", "create_graph") for one in node.keywords)
        is_earlier = (node.lineno, node.col_offset) < (frame.line, column)
        is_grad = written(node.func).endswith("autograd.grad")
        is_method = node.func.attr == "backward"  # type: ignore[attr-defined]
        if is_earlier and not keeps and (is_method or is_grad):
            given = node.func.value if is_method else (node.args or [node])[0]  # type: ignore[attr-defined]
            value = frame.value_of(given)
            tensor = value if isinstance(value, Tensor) else None
            yield _Earlier(node.lineno, line_of(node, frame.file), tensor)


def _loop_at(frame: TracebackFrame) -> ast.For | ast.While | ast.AsyncFor | None:
    """The innermost loop around the line of a frame."""
    nodes = ast.walk(frame.function) if frame.function is not None else ()
    loops = [one for one in nodes if isinstance(one, LOOPS) and _is_inside(frame.line, one)]
    return loops[-1] if loops else None


def _is_inside(line: int, statement: ast.stmt) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or 0)


def _of_own_last_value(frame: TracebackFrame, loop: ast.AST, inside: set[Node]) -> Iterator[str]:
    """Variables of the graph that a loop assigns from their own last value."""
    computed = {node for node in inside if getattr(node, "variable", None) is None}
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign):
            for name in sorted(_names_in(node.value) & _names_in(*node.targets)):
                value = frame.names.get(name)
                parts = value if isinstance(value, tuple | list) else (value,)
                tensors = [one for one in parts if isinstance(one, Tensor)]
                if any(not computed.isdisjoint(nodes_of([one])) for one in tensors):
                    yield name


def _names_in(*nodes: ast.AST) -> set[str]:
    return {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}


# ---------------------------------------------------------------------- where a backward begins


def _no_scalar(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    root = next((one for one in failure.differentiated if one.numel() != 1), None)
    is_grad = any(one.is_torch and one.code.co_name == "grad" for one in failure.frames)
    return {**_root(failure, root, _called_on(failure)), "is_grad": is_grad}


def _gradient_shape(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return _root(failure, _differentiated(failure, found), _called_on(failure))


def _nodes(failure: Failure, found: re.Match[str]) -> Details:
    nodes = [node for node in failure.nodes if node.name() == found["node"]]
    places = dict.fromkeys(place_of_node(node, failure.names)[0] for node in nodes)
    return tuple(("node", one) for one in list(places)[:3])


_ADDED = "Add the losses and call backward once."
_CARRIED = (
    "The graph of {name} goes on into that of an earlier backward, which freed it: {short} carries "
    "it over"
)
_FREED = "backward goes through a part of the graph of {name} that an earlier backward freed."
# Outside of a loop it is meant to be one graph, whose gradient a detach would change. In a loop,
# the graph of each step would be kept with all before it.
_ONE_GRAPH = (
    "Give retain_graph=True to the earlier backward, where no optimizer steps between the two.",
    _ADDED,
    "{detach}. This changes the gradient: nothing flows back through it any more.",
)

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
            "Set requires_grad_(True) on the parameters that the gradient depends on.",
            "Leave the second backward out: this derivative is zero.",
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
            "Set requires_grad_(True) on the parameters that are to be trained.",
            "Where gradients of the input are wanted, set requires_grad_(True) on the input before "
            "the forward.",
            when="frozen",
        ),
        SituationRow(
            "{name} has no graph: nothing that requires grad leads to it.",
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
        "Call {x}.requires_grad_() before the forward that computes the output.",
        "Leave {name} out of the inputs.",
        facts=_input_without_grad,
    ),
    "input not used": SituationRow(
        "A gradient with respect to {name} was asked for, and no path leads from the output to it.",
        ("is_copy", "Give the tensor that it was copied from: without .clone()."),
        "Give allow_unused=True to torch.autograd.grad: its gradient is then None (or zeros with "
        "materialize_grads=True).",
        "Compute the output from the very tensor {name}, and not from a copy or a detached one.",
        facts=_input_not_used,
    ),
    "backward twice": first_of(
        SituationRow(
            "The graph of {name} shares a part with one that an earlier backward went through and "
            "freed.",
            "Give retain_graph=True to the earlier backward.",
            _ADDED,
            "Compute the shared part again, or detach it for one of the two.",
            when="is_earlier",
        ),
        SituationRow(
            "backward goes through the graph of {name} a second time, and the first time freed "
            "what it needs.",
            ("is_round", "Compute {name} again in each round: move its forward into the loop."),
            "Give retain_graph=True to the first backward, if nothing that it goes through changes "
            "between the two.",
            _ADDED,
            "Run the forward again before the second backward.",
            when="is_first",
        ),
        SituationRow(
            _CARRIED + ", and gradients of {name} reach {lost} through it alone.",
            "Give retain_graph=True to the earlier backward, where {lost} is to learn from both.",
            "Write {short}.detach() in what the earlier backward goes through, where {lost} is to "
            "learn from {name} alone, as the generator of a GAN.",
            "Detach it here only if {lost} is to get no gradient of {name}: {detached}.",
            when="lost",
        ),
        SituationRow(
            _CARRIED + ", which was computed once, above the loop.",
            "Compute {short}, and what is computed of it, anew in each round: move it into the "
            "loop.",
            "If it is to stay as it is and needs no gradient: {detached}.",
            when="is_above",
        ),
        SituationRow(
            _CARRIED + ".",
            "{detach}.",
            "Where the gradient of this backward is the one that is wanted, detach {short} in what "
            "the earlier one goes through.",
            "Give retain_graph=True to the earlier backward, if its graph is really to be part of "
            "this one; memory then grows with each step.",
            when="is_carried_in_loop",
        ),
        SituationRow(_CARRIED + ".", *_ONE_GRAPH, when="is_carried"),
        SituationRow(
            _FREED,
            "{detach}.",
            "Give retain_graph=True to the earlier backward, or add the losses and call backward "
            "once.",
            when="is_freed_in_loop",
        ),
        SituationRow(_FREED, *_ONE_GRAPH, when="is_freed"),
        SituationRow(
            "A saved tensor of a node was read after a backward had freed it.",
            "Give retain_graph=True to that backward, or read it before.",
        ),
        facts=_twice,
    ),
    "no scalar": first_of(
        SituationRow(
            "torch.autograd.grad was asked for gradients of {name}, which is {shape} and not one "
            "number.",
            "Give grad_outputs=torch.ones_like({name}): the derivative of each element, where each "
            "depends on its own part of the input alone.",
            "Differentiate one number: {name_it}.sum(), or {name_it}.mean() where a mean is meant.",
            when="is_grad",
        ),
        SituationRow(
            "backward was called on {name}, which is {shape} and not one number.",
            "Reduce it to one number: {name_it}.mean().backward(), or .sum().",
            "Give the gradient to begin with: {name_it}.backward(torch.ones_like({name})).",
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
