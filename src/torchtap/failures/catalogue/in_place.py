"""Writes in place that autograd cannot bear."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from torchtap.core.source_files import shown_file
from torchtap.core.text import plural
from torchtap.failures.failure import UNNAMED, Details, Failure
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
from torchtap.failures.operands import Operand
from torchtap.failures.out_of_place import out_of_place, statement_at, statement_of
from torchtap.failures.parsed_source import replaced, written as as_source
from torchtap.failures.recording import num_unseen, recorded_writes
from torchtap.failures.situation_row import Situation, SituationRow, first_of
from torchtap.failures.traceback_frame import line_of
from torchtap.failures.writes import Write, writer_of

_CLONED = "Write into a clone: {name_cloned}."


def _overwritten(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The tensor that backward needs, and what wrote into it."""
    stale = [one for node in failure.nodes for one in saved_by(node) if one.state == OVERWRITTEN]
    if not stale:
        return {"parameter": "", "needed": ""}
    # Of several, that which PyTorch speaks of; of those, backward comes to the youngest first.
    meant = [one for one in stale if one.said == failure.text] or stale
    needed = max(meant, key=lambda one: int(one.node._sequence_nr()))
    place, module = place_of_node(needed.node, failure.names)
    since = int(found["then"])
    weight = _weight(failure, needed)
    if weight is not None:
        steps = _steps(failure, weight.tensor)
        seen = [] if needed.tensor is None else recorded_writes(needed.tensor, since=since)
        return {
            "parameter": weight.name,
            "step": steps[-1].partition(": ")[2] if steps else "the step of its optimizer",
            "loss": failure.called(next(iter(failure.differentiated), None), "the loss"),
            "details": (
                ("needed by", place),
                *(("step at", text) for text in steps[:3]),
                *(("written by", f"{shown_file(one.file)}:{one.line}") for one in seen[:3]),
            ),
            "where": failure.names.module(weight.module),
        }
    writer = _writer(failure, needed)
    label, written = writer_of(needed.tensor, writer, failure.frames, failure.names, since)
    texts = dict.fromkeys(one.text for one in written)
    sure = written[0] if len(texts) == 1 else None
    statement = None if sure is None else statement_at(sure.file, sure.line)
    new = out_of_place(statement)
    if module is None and len(written) == 1:
        module = _around(failure, needed.node, written[0])
    return {
        "parameter": "",
        "needed": _what(needed, failure),
        "place": place,
        "new": new,
        "cloned": _cloned(written),
        "rows": _rows_written(statement),
        "is_other": not new and not _rows_written(statement),
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


def _rows_written(statement: ast.stmt | None) -> str:
    """The tensor that a loop fills row by row; empty where the statement is of another kind."""
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=ast.Name() as whole, slice=ast.Name())]):
            return whole.id
    return ""


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


def _steps(failure: Failure, parameter: Tensor) -> list[str]:
    """Lines of the running functions that call the step of an optimizer of a parameter."""
    found = []
    for frame in failure.frames:
        for node in () if frame.is_torch else frame.calls_of("step"):
            held = frame.value_of(node.func.value)  # type: ignore[attr-defined]
            if isinstance(held, Optimizer):
                trained = (one for group in held.param_groups for one in group["params"])
                found.append((any(one is parameter for one in trained), line_of(node, frame.file)))
    own = [text for is_own, text in found if is_own]
    return list(dict.fromkeys(own or [text for _, text in found]))


# ---------------------------------------------------------------------- refused at once


def _target(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The name of what is written into: the operation's first tensor."""
    return {"name": failure.name_of(_written(failure)), "details": failure.details()}


def _written(failure: Failure) -> Operand:
    return next(iter(failure.tensors or failure.operands), Operand(UNNAMED))


def _leaf(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    facts, value = _target(failure, found), _written(failure).value
    state = failure.names.state(value)
    leaf = f"{facts['name']}, a leaf that requires grad"
    return {
        **facts,
        "part": "a part of " if found["view"] else "",
        "leaf": leaf if state is None else f"the parameter {state.name}",
        "is_module": getattr(failure.module, "inplace", False) is True,
        "where": failure.names.holder(value),
        "anew": _of_a_number(failure, value),
    }


def _of_a_number(failure: Failure, value: object) -> str:
    """The statement out of place, for a single number that is computed on, as a loss is."""
    is_number = isinstance(value, Tensor) and value.dim() == 0 and value.grad is None
    is_free = is_number and failure.names.state(value) is None
    statement = statement_of(failure.user) if is_free and failure.user is not None else None
    is_plain = isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name)
    return out_of_place(statement) if is_plain else ""


def _hooked(failure: Failure, found: re.Match[str]) -> Details:
    modules = (one for _, one in failure.names.modules())
    hooked = [one for one in modules if one._backward_hooks or one._backward_pre_hooks]
    return tuple(("hooked", failure.names.module(one)) for one in hooked[:4])


def _mode(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_inference = "inference" in failure.text[:40]
    return {**_target(failure, found), "mode": "inference_mode" if is_inference else "no_grad"}


_view_of_mode = SituationRow(
    "{name} is a view that was taken under torch.{mode}(), and is written into with grad mode on.",
    "Take the view and write into it in the same mode: both outside of it, or both inside.",
    _CLONED,
    facts=_mode,
)
SITUATIONS: dict[str, Situation] = {
    "overwritten": first_of(
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
            ("new", "Make a new tensor in place of the write: {new}."),
            (
                "rows",
                "Collect the rows in a list, rows.append(...), and read them from it; then "
                "{rows} = torch.stack(rows) behind the loop.",
            ),
            (
                "is_other",
                "Replace the write by an operation out of place: x = x + y for x += y, "
                "inplace=False for inplace=True, torch.where for x[mask] = y.",
            ),
            "Write into a clone: {cloned} before the write.",
            when="needed",
        ),
        SituationRow(
            "A tensor that backward needs ({tensor}) was overwritten in place after the forward "
            "had saved it.",
            "Replace the operation in place by one out of place: x = x + y for x += y.",
        ),
        facts=_overwritten,
    ),
    "leaf in place": SituationRow(
        "The program writes in place into {part}{leaf}, while grad mode is on: its gradient would "
        "be that of a value that is gone.",
        ("is_module", "Set inplace=False: {variable}.inplace = False."),
        ("anew", "Compute a new number of it, which keeps the gradient right: {anew}."),
        "Put the write inside torch.no_grad(): to initialise or update it.",
        "Compute a new tensor, if the write is part of the forward: y = {name_it}.clone() and "
        "write into y.",
        facts=_leaf,
    ),
    "view of a backward hook": SituationRow(
        "{module} writes in place into what a module with a full backward hook returned or takes: "
        "the hook made a view of it, which cannot be written into.",
        "Set inplace=False: {variable}.inplace = False, or x + y for x += y.",
        "Watch the gradient without such a hook: tt.watch(model, '...:grad_output') or "
        "tensor.register_hook bear writes in place.",
        about="tensors",
        details=_hooked,
    ),
    "view of a function": SituationRow(
        "{name} is a view that the custom function {node} returned, and is written into in place: "
        "the backward of {node} would be passed over.",
        _CLONED,
        "Return a tensor of its own from {node}.forward: x.view(...).clone(), or no view.",
        "Compute out of place: x = x + y for x += y.",
        facts=_target,
    ),
    "view of no_grad": _view_of_mode,
    "view of inference": _view_of_mode,
}
