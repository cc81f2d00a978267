"""A backward that cannot run: no graph, a graph that is freed, no number to begin at."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from torchtap.failures.assignments import assignments_of
from torchtap.failures.cuts import cuts_in, without_grad
from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.frame import Frame, shown_file
from torchtap.failures.graph_reading import FREED, Node, leaves_of, nodes_of, place_of, saved_by
from torchtap.failures.operands import Operand, shape_of
from torchtap.failures.source import grouped, written

Details = tuple[tuple[str, str], ...]


def _name(failure: Failure, tensor: Tensor | None, otherwise: str) -> str:
    held = [] if tensor is None else failure.holders(tensor)
    return held[-1] if held else otherwise


def _called_on(failure: Failure) -> str:
    """Return what the program differentiates, as it is written; ``output`` if it is not seen."""
    frame = failure.user
    node = None if frame is None else frame.expression
    called = node.func if isinstance(node, ast.Call) else None
    if frame is not None and isinstance(node, ast.Call) and node.args:
        is_one = not isinstance(node.args[0], ast.List | ast.Tuple | ast.Starred)
        if is_one and written(node.func).endswith("autograd.grad"):
            return written(node.args[0], frame.file)
    if frame is None or not isinstance(called, ast.Attribute) or called.attr != "backward":
        return "output"
    return written(called.value, frame.file)


def _made(failure: Failure, tensor: Tensor | None) -> str:
    if tensor is None:
        return ""
    return failure.origin(Operand("it", tensor, len(failure.frames) - 1)).text


def _no_graph(failure: Failure, found: re.Match[str]) -> Explanation:
    at = int(found["at"])
    tensor = failure.differentiated[at] if at < len(failure.differentiated) else None
    name, made = _name(failure, tensor, "the loss"), _made(failure, tensor)
    details: Details = (("tensor", f"{name}, {shape_of(tensor)}, {made}".rstrip(", ")),)
    if tensor is not None and not tensor.is_inference() and _is_whole(tensor):
        return Explanation(
            f"backward was called on {name}, which holds whole numbers ({shape_of(tensor)}) and "
            f"has no gradient.",
            ("Compute the loss from floats: from logits, and not from argmax or counts.",),
            details,
        )
    if "autograd.grad(" in made and "create_graph" in made:
        return Explanation(
            f"{name} is a gradient that depends on nothing that requires grad: what was "
            "differentiated is linear in it.",
            (
                "Set requires_grad_(True) on the parameters that the gradient depends on.",
                "Leave the second backward out: this derivative is zero.",
            ),
            details,
        )
    if "autograd.grad(" in made:
        return Explanation(
            f"{name} is a gradient without a graph of its own: torch.autograd.grad made it without "
            f"create_graph.",
            ("Give create_graph=True to the torch.autograd.grad that makes it.",),
            details,
        )
    return _cut(failure, tensor, name, details)


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _cut(failure: Failure, tensor: Tensor | None, name: str, details: Details) -> Explanation:
    """Nothing that requires grad leads to the tensor: why."""
    if tensor is not None and tensor.is_inference():
        return Explanation(
            f"{name} was computed in inference mode, so there is no graph to go back through.",
            (
                "Compute what is trained outside of torch.inference_mode().",
                "Where only some of it must have no graph, put torch.no_grad() around that part.",
            ),
            (*details, *(("cut", one.text) for one in cuts_in(failure) if one.is_mode)),
        )
    frozen = without_grad(failure)
    if frozen:
        return Explanation(
            f"{name} has no graph: no parameter of {frozen} requires grad.",
            (
                "Set requires_grad_(True) on the parameters that are to be trained.",
                "Where gradients of the input are wanted, set requires_grad_(True) on the input "
                "before the forward.",
            ),
            details,
        )
    cuts = cuts_in(failure)
    what = f"{name} has no graph: nothing that requires grad leads to it."
    modules = ", ".join(dict.fromkeys(one.module for one in cuts if one.module))
    ways = tuple(dict.fromkeys(one.way for one in cuts[:3]))
    if not cuts:
        ways = (
            "Compute it from parameters, or from inputs with requires_grad_(True), with grad "
            "mode on.",
        )
    shown = (("cut" if one.is_on_way else "perhaps", one.text) for one in cuts[:4])
    return Explanation(what, ways, (*details, *shown), modules)


def _input_without_grad(failure: Failure, found: re.Match[str]) -> Explanation:
    inputs = _inputs(failure)
    without = [(name, one) for name, one in inputs if not one.requires_grad]
    name = without[0][0] if without else "one of the inputs"
    holder = failure.names.holder(without[0][1]) if without else None
    it = grouped(name) if without else "x"
    if holder is not None:
        it = f"{failure.names.variable(holder)}.{name.rpartition('.')[2]}"
    return Explanation(
        f"A gradient with respect to {name} was asked for, which does not require grad.",
        (
            f"Call {it}.requires_grad_() before the forward that computes the output.",
            f"Leave {name} out of the inputs.",
        ),
        tuple(("input", f"{name}, {shape_of(one)}") for name, one in inputs[:4]),
    )


def _inputs(failure: Failure) -> list[tuple[str, Tensor]]:
    for frame in failure.frames:
        if frame.is_torch and frame.code.co_name == "grad":
            given = frame.frame.f_locals.get("inputs")
            tensors = given if isinstance(given, tuple | list) else (given,)
            return [
                (failure.names.tensor(one) or _name(failure, one, f"input {at}"), one)
                for at, one in enumerate(tensors)
                if isinstance(one, Tensor)
            ]
    return []


def _input_not_used(failure: Failure, found: re.Match[str]) -> Explanation:
    inputs = _inputs(failure)
    at = int(found["at"] or 0)
    name = inputs[at][0] if at < len(inputs) else "an input"
    holder = failure.names.holder(inputs[at][1]) if at < len(inputs) else None
    return Explanation(
        f"A gradient with respect to {name} was asked for, and no path leads from the output to "
        f"it.",
        (
            "Give allow_unused=True to torch.autograd.grad: its gradient is then None (or zeros "
            "with materialize_grads=True).",
            f"Compute the output from the very tensor {name}, and not from a copy or a detached "
            f"one.",
        ),
        (),
        "" if holder is None else failure.names.module(holder),
    )


def _twice(failure: Failure, found: re.Match[str]) -> Explanation:
    if not failure.differentiated:
        return Explanation(
            "A saved tensor of a node was read after a backward had freed it.",
            ("Give retain_graph=True to that backward, or read it before.",),
        )
    root = failure.differentiated[0]
    name = _name(failure, root, "the loss")
    again, other, carrier = _earlier_backward(failure, root)
    if again and other is not None:
        return _shared_part(failure, name, again, other)
    if again:
        return _same_loss(failure, name, again)
    if carrier is None:
        detach = "Detach what was computed before that backward and is used again: x = x.detach()"
        return Explanation(
            f"backward goes through a part of the graph of {name} that an earlier backward freed.",
            _kept_or_detached(failure, detach),
            *_freed_in(failure, failure.nodes, is_certain=False),
        )
    nodes = failure.nodes
    is_older = carrier.tensor is not None and carrier.tensor is not root
    if is_older and carrier.tensor is not None:
        nodes = nodes_of([carrier.tensor])
    short = carrier.name
    lost = _only_through(failure, root, carrier)
    if lost:
        freed = _freed_in(failure, nodes, is_certain=is_older)
        return _needed_carrier(failure, name, carrier, lost, freed)
    what = (
        f"The graph of {name} goes on into that of an earlier backward, which freed it: {short} "
        "carries it over."
    )
    detached = f"Detach {short} before it is used again: {_detached(short, carrier.is_tuple)}"
    if not _is_in_loop(failure):
        ways = _kept_or_detached(failure, detached)
        return Explanation(what, ways, *_freed_in(failure, nodes, is_certain=is_older))
    return Explanation(
        what,
        (
            f"{detached}.",
            f"Where the gradient of this backward is the one that is wanted, detach {short} in "
            "what the earlier one goes through.",
            "Give retain_graph=True to the earlier backward, if its graph is really to be part of "
            "this one; memory then grows with each step.",
        ),
        *_freed_in(failure, nodes, is_certain=is_older),
    )


def _kept_or_detached(failure: Failure, detach: str) -> tuple[str, ...]:
    """The ways out where a part of the graph is used again, best first.

    In a loop, the graph of each step would be kept with all before it. Outside of one, it is meant
    to be one graph, whose gradient a detach would change.
    """
    if _is_in_loop(failure):
        keep = "Give retain_graph=True to the earlier backward, or add the losses and call "
        return f"{detach}.", f"{keep}backward once."
    return (
        "Give retain_graph=True to the earlier backward, where no optimizer steps between the two.",
        "Add the losses and call backward once.",
        f"{detach}. This changes the gradient: nothing flows back through it any more.",
    )


def _is_in_loop(failure: Failure) -> bool:
    return any(not frame.is_torch and _loop_at(frame) is not None for frame in failure.frames)


def _only_through(failure: Failure, root: Tensor, carrier: _Carrier) -> str:
    """The module whose parameters a loss reaches through one tensor alone; empty if there is none.

    Were that tensor detached, they would get no gradient of the loss.
    """
    node = None if carrier.tensor is None else carrier.tensor.grad_fn
    if carrier.tensor is None or node is None or carrier.is_tuple:
        return ""
    around = {id(one) for one in leaves_of([root], without=node)}
    lost = [one for one in leaves_of([carrier.tensor]) if id(one) not in around]
    holders = (failure.names.holder(one) for one in lost)
    found = next((one for one in holders if one is not None), None)
    return "" if found is None else failure.names.module(found)


def _needed_carrier(
    failure: Failure, name: str, carrier: _Carrier, lost: str, freed: tuple[Details, str]
) -> Explanation:
    """A tensor that brings an earlier graph in, and through which gradients are wanted."""
    short = carrier.name
    return Explanation(
        f"The graph of {name} goes on into that of an earlier backward, which freed it: {short} "
        f"carries it over, and gradients of {name} reach {lost} through it alone.",
        (
            f"Give retain_graph=True to the earlier backward, where {lost} is to learn from both.",
            f"Write {short}.detach() in what the earlier backward goes through, where {lost} is to "
            f"learn from {name} alone, as the generator of a GAN.",
            f"Detach it here only if {lost} is to get no gradient of {name}: "
            f"{_detached(short, carrier.is_tuple)}.",
        ),
        *freed,
    )


def _detached(name: str, is_tuple: bool) -> str:
    if is_tuple:
        return f"{name} = tuple(one.detach() for one in {name})"
    return f"{name} = {name}.detach()"


def _shared_part(failure: Failure, name: str, again: str, other: Tensor) -> Explanation:
    """Two losses have a part of the graph in common, and the backward of one has freed it."""
    before = set(nodes_of([other]))
    details, module = _freed_in(
        failure, [one for one in failure.nodes if one in before], is_certain=True
    )
    return Explanation(
        f"The graph of {name} shares a part with one that an earlier backward went through and "
        "freed.",
        (
            "Give retain_graph=True to the earlier backward.",
            "Add the losses and call backward once.",
            "Compute the shared part again, or detach it for one of the two.",
        ),
        (("earlier", again), *details),
        module,
    )


def _same_loss(failure: Failure, name: str, again: str) -> Explanation:
    details, module = _freed_in(failure, failure.nodes, is_certain=True)
    return Explanation(
        f"backward goes through the graph of {name} a second time, and the first time freed what "
        "it needs.",
        (
            "Give retain_graph=True to the first backward.",
            "Add the losses and call backward once.",
            "Run the forward again before the second backward.",
        ),
        (("first", again), *details),
        module,
    )


def _freed_in(failure: Failure, nodes: list[Node], *, is_certain: bool) -> tuple[Details, str]:
    """A node that an earlier backward has freed, and the module of the first such node.

    Without ``is_certain``, the oldest one: what is younger may have been freed by the backward that
    failed, which runs the youngest first.
    """
    freed = [node for node in nodes if any(one.state == FREED for one in saved_by(node))]
    if not is_certain:
        freed.sort(key=lambda node: int(node._sequence_nr()))
    places = [place_of(node, failure.names) for node in freed[:200]]
    module = next((one for _, one in places if one is not None), None)
    details = (("freed", places[0][0]),) if places else ()
    return details, "" if module is None else failure.names.module(module)


class _Carrier(NamedTuple):
    name: str
    tensor: Tensor | None
    is_tuple: bool = False


def _earlier_backward(failure: Failure, root: Tensor) -> tuple[str, Tensor | None, _Carrier | None]:
    """Find in the source the line that went through this loss before, or what else brings it in.

    Freed values cannot tell: the backward that failed has freed what it had passed.

    Returns:
        the line of an earlier backward, the other tensor that it began at (``None`` for this
        one), and what carries its graph into this one.
    """
    for frame in failure.frames:
        names = [key for key, value in frame.own_names.items() if value is root]
        if frame.is_torch or not names:
            continue
        made = [one for key in names for one in assignments_of(frame, key)]
        if len(made) != 1:
            continue
        loop = _loop_at(frame)
        first, last = made[0].line, frame.line
        calls = list(_earlier_calls(frame))
        for call in reversed(calls):
            if call.tensor is root and first <= call.line:
                return call.text, None, None
        if loop is not None and not loop[0] <= first <= loop[1]:
            return f"{shown_file(frame.file)}:{last}, in an earlier round of the loop", None, None
        inside = {one for one in failure.nodes if any(True for _ in saved_by(one))}
        for call in reversed(calls):
            other = call.tensor
            if other is None or other is root or inside.isdisjoint(nodes_of([other])):
                continue
            carrier = _carrier(failure, frame, first, calls, loop)
            return ("", None, carrier) if carrier else (call.text, other, None)
        return "", None, _carrier(failure, frame, first, calls, loop)
    return "", None, None


def _carrier(
    failure: Failure,
    frame: Frame,
    made: int,
    calls: list[_Earlier],
    loop: tuple[int, int] | None,
) -> _Carrier | None:
    """The variable of the graph that is older than an earlier backward."""
    inside = set(failure.nodes)
    earlier = [one for one in calls if one.line < made]
    before = max((one.line for one in earlier), default=0)
    starts = [one.tensor for one in earlier if one.tensor is not None]
    older = inside.intersection(nodes_of(starts))
    for name, value in [*frame.own_names.items(), *_attributes(frame.owner)]:
        for one in value if type(value) in (tuple, list) else (value,):
            if not isinstance(one, Tensor) or one.grad_fn not in inside:
                continue
            lines = [given.line for given in assignments_of(frame, name)]
            is_outside = loop is not None and bool(lines) and max(lines) < loop[0]
            is_before = bool(lines) and max(lines) < before
            if is_outside or is_before or one.grad_fn in older or name.startswith("self."):
                return _Carrier(name, one, isinstance(value, tuple | list))
    found = next(_of_loops(frame, inside), "")
    if found:
        return _Carrier(found, None, isinstance(frame.names.get(found), tuple | list))
    for _, module in failure.names.modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.grad_fn in inside:
                return _Carrier(f"{failure.names.variable(module)}.{name}", None)
    return None


class _Earlier(NamedTuple):
    """A call of a backward in a running function: its line, and what it begins at, if known."""

    line: int
    text: str
    tensor: Tensor | None


def _earlier_calls(frame: Frame) -> Iterator[_Earlier]:
    """Calls of a backward in a running function, before the running one, that free the graph."""
    here = frame.expression
    column = here.col_offset if isinstance(here, ast.expr) else 0
    for node in ast.walk(frame.function) if frame.function is not None else ():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        keeps = any(one.arg in ("retain_graph", "create_graph") for one in node.keywords)
        if keeps or (node.lineno, node.col_offset) >= (frame.line, column):
            continue
        is_method = node.func.attr == "backward"
        if is_method or written(node.func).endswith("autograd.grad"):
            given = node.func.value if is_method else (node.args or [node])[0]
            value = frame.value_of(given)
            text = f"{shown_file(frame.file)}:{node.lineno}: {written(node, frame.file)}"
            yield _Earlier(node.lineno, text, value if isinstance(value, Tensor) else None)


def _loop_at(frame: Frame) -> tuple[int, int] | None:
    """First and last line of the innermost loop around the line of a frame."""
    loops = [node for node in ast.walk(frame.function or ast.Module([], [])) if _is_loop(node)]
    spans = [(node.lineno, node.end_lineno or 0) for node in loops]  # type: ignore[attr-defined]
    around = [span for span in spans if span[0] <= frame.line <= span[1]]
    return around[-1] if around else None


def _of_loops(frame: Frame, inside: set[Node]) -> Iterator[str]:
    """Variables of the graph that a loop assigns from their own last value."""
    loop = _loop_at(frame)
    for node in ast.walk(frame.function or ast.Module([], [])):
        if (
            loop is None
            or not isinstance(node, ast.Assign)
            or not loop[0] <= node.lineno <= loop[1]
        ):
            continue
        read = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
        given = {one.id for at in node.targets for one in ast.walk(at) if isinstance(one, ast.Name)}
        yield from (name for name in sorted(read & given) if _is_of(frame, name, inside))


def _is_loop(node: ast.AST) -> bool:
    return isinstance(node, ast.For | ast.While | ast.AsyncFor)


def _is_of(frame: Frame, name: str, inside: set[Node]) -> bool:
    value = frame.names.get(name)
    parts = value if isinstance(value, tuple | list) else (value,)
    kept = {node for node in inside if getattr(node, "variable", None) is None}
    tensors = [one for one in parts if isinstance(one, Tensor)]
    return any(not kept.isdisjoint(nodes_of([one])) for one in tensors)


def _attributes(owner: object) -> list[tuple[str, object]]:
    if owner is None or isinstance(owner, Tensor):
        return []
    return [(f"self.{name}", value) for name, value in getattr(owner, "__dict__", {}).items()]


def _no_scalar(failure: Failure, found: re.Match[str]) -> Explanation:
    root = next((one for one in failure.differentiated if one.numel() != 1), None)
    name = _name(failure, root, _called_on(failure))
    it = grouped(name)
    details = (("tensor", f"{name}, {shape_of(root)}, {_made(failure, root)}".rstrip(", ")),)
    if any(one.is_torch and one.code.co_name == "grad" for one in failure.frames):
        return Explanation(
            f"torch.autograd.grad was asked for gradients of {name}, which is {shape_of(root)} and "
            "not one number.",
            (
                f"Give grad_outputs=torch.ones_like({name}): the derivative of each element, where "
                "each depends on its own part of the input alone.",
                f"Differentiate one number: {it}.sum(), or {it}.mean() where a mean is meant.",
            ),
            details,
        )
    return Explanation(
        f"backward was called on {name}, which is {shape_of(root)} and not one number.",
        (
            f"Reduce it to one number: {it}.mean().backward(), or .sum().",
            f"Give the gradient to begin with: {it}.backward(torch.ones_like({name})).",
        ),
        details,
    )


def _gradient_shape(failure: Failure, found: re.Match[str]) -> Explanation:
    at = int(found["at"])
    root = failure.differentiated[at] if at < len(failure.differentiated) else None
    name = _name(failure, root, _called_on(failure))
    return Explanation(
        f"The gradient given for {name} has shape {found['given']}, and {name} has "
        f"{found['wanted']}.",
        (
            f"Give a gradient of the shape of the output: torch.ones_like({name}).",
            f"Reduce {name} to one number first: {grouped(name)}.sum().backward().",
        ),
        (("tensor", f"{name}, {shape_of(root)}, {_made(failure, root)}".rstrip(", ")),),
    )


def _nan(failure: Failure, found: re.Match[str]) -> Explanation:
    kind = found["node"]
    nodes = [node for node in failure.nodes if node.name() == kind]
    places = list(dict.fromkeys(place_of(node, failure.names)[0] for node in nodes))
    return Explanation(
        f"The backward of {kind} computed NaN (anomaly detection is on).",
        (
            "Keep the input of that operation away from where its derivative is infinite: for "
            "example (x + 1e-6).sqrt(), or x.clamp(min=1e-6).",
            "Look at the values that arrive there: tt.watch with to=tt.Stats().",
        ),
        tuple(("node", one) for one in places[:3]),
    )


SITUATIONS = {
    "no graph": _no_graph,
    "input without grad": _input_without_grad,
    "input not used": _input_not_used,
    "backward twice": _twice,
    "no scalar": _no_scalar,
    "gradient of another shape": _gradient_shape,
    "nan in backward": _nan,
}
