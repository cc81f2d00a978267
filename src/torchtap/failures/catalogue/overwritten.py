"""Values that backward needs, and that were overwritten after the forward."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.core.source_files import shown_file
from torchtap.core.text import plural
from torchtap.failures.earlier_backwards import (
    KEPT,
    LIST,
    STATE,
    Carrier,
    caller_of,
    carriers,
    detached,
)
from torchtap.failures.failure import Details, Failure
from torchtap.failures.graph_cuts import modules_at
from torchtap.failures.graph_reading import (
    OVERWRITTEN,
    Node,
    SavedValue,
    module_before,
    parameters_at,
    place_of_node,
    saved_by,
    shares_memory,
)
from torchtap.failures.module_names import NamedState
from torchtap.failures.optimizer_steps import Step, steps_in
from torchtap.failures.out_of_place import out_of_place, statement_at
from torchtap.failures.parsed_source import replaced, written as as_source
from torchtap.failures.recording import num_unseen, recorded_writes
from torchtap.failures.situation_row import Situation, SituationRow, first_of
from torchtap.failures.writes import Write, writer_of


def _overwritten(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The tensor that backward needs, and what wrote into it."""
    stale = [one for node in failure.nodes for one in saved_by(node) if one.state == OVERWRITTEN]
    if not stale:
        return {"parameter": "", "needed": ""}
    # PyTorch names one of several; backward comes to the youngest of these first.
    meant = [one for one in stale if one.said == failure.text] or stale
    needed = max(meant, key=lambda one: int(one.node._sequence_nr()))
    place, module = place_of_node(needed.node, failure.names)
    since = int(found["then"])
    weight = _weight(failure, needed)
    if weight is not None:
        return _of_weight(failure, needed, weight, since)
    writer = _writer(failure, needed)
    label, written = writer_of(needed.tensor, writer, failure.frames, failure.names, since)
    texts = dict.fromkeys(one.text for one in written)
    # Several writes of one statement, as of x.mul_(a).add_(b), are replaced together.
    is_one = len({(one.file, one.line) for one in written}) == 1
    sure = written[0] if len(texts) == 1 or (is_one and written[0].file) else None
    statement = None if sure is None else statement_at(sure.file, sure.line)
    new, rows, inner = out_of_place(statement), _rows_written(statement), _in_place_modules(written)
    if module is None and len(written) == 1:
        module = _around(failure, needed.node, written[0])
    return {
        "parameter": "",
        "needed": _what(needed, failure),
        "buffer": _buffer(needed.tensor, failure),
        "inner": inner,
        "place": place,
        "new": new,
        "cloned": _cloned(written),
        "is_written": not inner and not _buffer(needed.tensor, failure),
        **rows,
        "is_other": not new
        and not _rows_written(statement)["rows"]
        and not _in_place_modules(written),
        "details": (
            ("needed by", place),
            *((label, text) for text in list(texts)[:6]),
            *_unseen(needed.tensor, since, int(found["now"])),
            ("versions", f"saved at {found['then']}, now at {found['now']}"),
        ),
        "where": failure.names.module(module),
    }


def _cloned(written: list[Write]) -> str:
    """How the tensor that is written into is replaced by a clone."""
    targets = {as_source(one.target) for one in written if one.target is not None}
    name = next(iter(targets)) if len(targets) == 1 else "x"
    return replaced(name, "clone()")


def _in_place_modules(written: list[Write]) -> str:
    """The module with ``inplace=True`` that wrote; empty if it was another write."""
    texts = [one.text.partition(", which has inplace=True")[0] for one in written if not one.file]
    return texts[0] if len(texts) == len(written) == 1 else ""


def _rows_written(statement: ast.stmt | None) -> dict[str, Any]:
    """The tensor that a loop fills row by row, and how rows are stacked; empty of other writes."""
    match statement:
        case ast.Assign(
            targets=[ast.Subscript(value=ast.Name() as whole, slice=ast.Name() | ast.BinOp())]
        ):
            return {"rows": whole.id, "along": ""}
        case ast.Assign(
            targets=[ast.Subscript(value=ast.Name() as whole, slice=ast.Tuple(elts=parts))]
        ):
            kinds = (ast.Name, ast.BinOp)
            at = [number for number, one in enumerate(parts) if isinstance(one, kinds)]
            whole_ones = [one for one in parts if ast.unparse(one) == ":"]
            if len(at) == 1 and len(whole_ones) == len(parts) - 1:
                return {"rows": whole.id, "along": f", dim={at[0]}"}
    return {"rows": "", "along": ""}


def _unseen(tensor: Tensor | None, since: int, now: int) -> Details:
    """Return the detail that the recording, where there is one, has not seen all writes."""
    num = 0 if tensor is None else num_unseen(tensor, since=since, now=now)
    if num < 1:
        return ()
    text = (
        f"{num} of {plural(now - since, 'write')}: record=True sees no writes of what "
        "torch.compile compiled, of other threads, and of compiled extensions"
    )
    return (("unseen", text),)


def _around(failure: Failure, node: Node, write: Write) -> nn.Module | None:
    """The module in whose forward the write stands, and that holds what stands before the node."""
    before = module_before(node, failure.names)
    found = modules_at(failure, write.file, write.line)
    holding = [one for one in found if any(inner is before for inner in one.modules())]
    chosen = holding or found
    return chosen[0] if len(chosen) == 1 else None


def _what(saved: SavedValue, failure: Failure) -> str:
    buffer = _buffer(saved.tensor, failure)
    if buffer:
        return f"the buffer {buffer}"
    if saved.name.startswith("result"):
        return "its own result"
    if saved.name == "tensors":  # Of a function that was written in Python.
        return "a tensor that it saved"
    return f"its operand ({saved.name!r})"


def _buffer(tensor: Tensor | None, failure: Failure) -> str:
    for path, module in failure.names.modules():
        for name, one in module._buffers.items():
            if shares_memory(one, tensor):
                return f"{path}.{name}".lstrip(".")
    return ""


def _writer(failure: Failure, needed: SavedValue) -> Node | None:
    """The node of the last write, if autograd recorded it."""
    tensor = needed.tensor
    # Once its base is written into, a view has a new node, and the base has that of the write.
    for one in () if tensor is None else (tensor._base, tensor):
        if one is not None and one.grad_fn is not None and one.grad_fn is not needed.node:
            return one.grad_fn
    takes = [
        node
        for node in failure.nodes
        if any(following is needed.node for following, _ in node.next_functions)
        if tensor is None or _is_shaped(node, tensor)  # What is written in place keeps its shape.
    ]
    for node in takes:
        kept = [one for one in saved_by(node) if one.tensor is not None]
        results = [one for one in kept if one.name.startswith("result")]
        # Its result stands in the memory of what it took.
        if any(shares_memory(one.tensor, tensor) for one in results):
            return node
        if "CopySlices" in node.name() or not kept:
            return node
    return takes[0] if len(takes) == 1 else None


def _is_shaped(node: Node, tensor: Tensor) -> bool:
    given = getattr(node, "_input_metadata", None) or ()
    if not given or tensor.is_nested:
        return True
    return any(tuple(one.shape) == tuple(tensor.shape) for one in given)


def _weight(failure: Failure, needed: SavedValue) -> NamedState | None:
    """The parameter whose memory was overwritten."""
    for parameter in parameters_at(needed.node):
        state = failure.names.state(parameter)
        is_it = needed.tensor is None or shares_memory(parameter, needed.tensor)
        if is_it and state is not None:
            return state
    return None


def _of_weight(
    failure: Failure, needed: SavedValue, weight: NamedState, since: int
) -> Mapping[str, Any]:
    """How a parameter was changed: by a step, in an earlier round, or by the program itself."""
    root = next(iter(failure.differentiated), None)
    place, _ = place_of_node(needed.node, failure.names)
    details: list[tuple[str, str]] = [("needed by", place)]
    facts = {
        "parameter": weight.name,
        "owner": failure.names.module(weight.module),
        "loss": failure.called(root, "the loss"),
        "where": failure.names.module(weight.module),
    }
    every = [one for frame in failure.frames if not frame.is_torch for one in steps_in(frame)]
    own = [one for one in every if id(weight.tensor) in one.trained]
    details += [("step at", text) for text in dict.fromkeys(one.place for one in own[:3])]
    seen = [] if needed.tensor is None else recorded_writes(needed.tensor, since=since)
    details += [("written by", f"{shown_file(one.file)}:{one.line}") for one in seen[:3]]
    if not own:
        return {**facts, **_changed_by_hand(failure, needed, since, details)}
    carried = _carried(failure, own) if root is not None else None
    if carried is not None:
        details.append(("carried by", carried.name))
        return {**facts, "short": carried.name, "detached": detached(carried), "details": details}
    return {**facts, "step": own[-1].text, "details": tuple(details)}


def _carried(failure: Failure, steps: list[Step]) -> Carrier | None:
    """Return the value of an earlier round, whose step changed the parameter, in a loss."""
    frame = caller_of(failure)
    loop = None if frame is None else frame.loop
    if frame is None or loop is None or any(one.at[0] < frame.line for one in steps):
        return None
    found = carriers(failure, frame, failure.differentiated[0], ())
    return found[0] if found and found[0].since in (STATE, LIST, KEPT) else None


def _changed_by_hand(
    failure: Failure, needed: SavedValue, since: int, details: list[tuple[str, str]]
) -> Mapping[str, Any]:
    """The lines that write into a parameter, where no step of an optimizer does."""
    _, written = writer_of(needed.tensor, None, failure.frames, failure.names, since)
    # A write into .data is not counted: backward would take its value and say nothing.
    texts = list(dict.fromkeys(one.text for one in written if one.file and ".data" not in one.text))
    if not texts:
        return {"step": "the step of its optimizer", "details": tuple(details)}
    details += [("perhaps by", one) for one in texts[:3] if not any(one in row for row in details)]
    return {"is_by_hand": True, "details": tuple(details)}


SITUATIONS: dict[str, Situation] = {
    "overwritten": first_of(
        SituationRow(
            "The parameter {parameter} was changed by a step after an earlier round had gone "
            "through it, and {short} brings the graph of that round into this backward.",
            "Detach {short} before it is used again: {detached}. Gradients then end at the round.",
            "If gradients are to flow through several rounds: add up their losses, and call "
            "backward and the step once, behind the loop.",
            when="short",
        ),
        SituationRow(
            "The parameter {parameter} was written into between the forward and this backward, "
            "which needs its value of then; no step of an optimizer of it is seen.",
            "If {loss} is of the values of the forward: write behind its backward.",
            "If no gradient is to go through {owner} here, as through a teacher or an average of "
            "weights: run its forward under torch.no_grad().",
            "If gradients are to go through the update, as in meta learning: compute new tensors "
            "and call the module with them, torch.func.functional_call(model, new, inputs).",
            "If a step in another function changed it: compute {loss} again behind that step.",
            when="is_by_hand",
        ),
        SituationRow(
            "The parameter {parameter} was changed between the forward and this backward, which "
            "needs its value of then.",
            "Compute {loss} again behind {step}, by a new forward: it then goes through the "
            "parameters as they are.",
            "Or call all backwards before {step}; gradients of several losses add up where they "
            "reach the same parameters.",
            "Detach what the earlier part computed, if its gradient is not wanted there: for a "
            "discriminator, D(fake.detach()).",
            when="parameter",
        ),
        SituationRow(
            "Backward of {place} needs {needed}, which was overwritten in place after the forward "
            "had saved it.",
            (
                "buffer",
                "If the forward updates {buffer}, as running statistics or a codebook: give a "
                "clone of it, {buffer}.clone(), to what the graph is computed with.",
            ),
            ("inner", "Set inplace=False where {inner} is made: it then makes a new tensor."),
            ("new", "Make a new tensor in place of the write: {new}."),
            (
                "rows",
                "Collect the rows in a list, rows.append(...), and read them from it; then "
                "{rows} = torch.stack(rows{along}) behind the loop.",
            ),
            (
                "is_other",
                "Replace the write by an operation out of place: x = x + y for x += y, "
                "inplace=False for inplace=True, torch.where for x[mask] = y.",
            ),
            ("is_written", "Write into a clone: {cloned} before the write."),
            when="needed",
        ),
        SituationRow(
            "A tensor that backward needs ({tensor}) was overwritten in place after the forward "
            "had saved it.",
            "Replace the operation in place by one out of place: x = x + y for x += y.",
        ),
        facts=_overwritten,
    ),
}
