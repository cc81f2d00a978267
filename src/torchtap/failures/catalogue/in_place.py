"""Writes in place that autograd cannot bear."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from torchtap.core.source_files import shown_file
from torchtap.core.text import plural
from torchtap.failures.assignments import looped_over
from torchtap.failures.failure import UNNAMED, Details, Explanation, Failure
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
from torchtap.failures.parsed_source import grouped, replaced, written as as_source
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
        seen = [] if needed.tensor is None else recorded_writes(needed.tensor, since=since)
        return {
            "parameter": weight.name,
            "details": (
                ("needed by", place),
                *(("step at", text) for text in _steps(failure)[:3]),
                *(("written by", f"{shown_file(one.file)}:{one.line}") for one in seen[:3]),
            ),
            "where": failure.names.module(weight.module),
        }
    writer = _writer(failure, needed)
    label, written = writer_of(needed.tensor, writer, failure.frames, failure.names, since)
    texts = dict.fromkeys(one.text for one in written)
    if module is None and len(written) == 1:
        module = _around(failure, needed.node, written[0])
    return {
        "parameter": "",
        "needed": _what(needed, failure),
        "place": place,
        "details": (
            ("needed by", place),
            *((label, text) for text in list(texts)[:6]),
            *_unseen(needed.tensor, since, int(found["now"])),
            ("versions", f"saved at {found['then']}, now at {found['now']}"),
        ),
        "where": failure.names.module(module),
    }


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


def _steps(failure: Failure) -> list[str]:
    """Lines of the running functions that call the step of an optimizer."""
    found = (
        line_of(node, frame.file)
        for frame in failure.frames
        if not frame.is_torch
        for node in frame.calls_of("step")
        if isinstance(frame.value_of(node.func.value), Optimizer)  # type: ignore[attr-defined]
    )
    return list(dict.fromkeys(found))


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
        "where": failure.names.holder(value),
    }


def _hooked(failure: Failure, found: re.Match[str]) -> Details:
    modules = (one for _, one in failure.names.modules())
    hooked = [one for one in modules if one._backward_hooks or one._backward_pre_hooks]
    return tuple(("hooked", failure.names.module(one)) for one in hooked[:4])


def _mode(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_inference = "inference" in failure.text[:40]
    return {**_target(failure, found), "mode": "inference_mode" if is_inference else "no_grad"}


def _several(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = _written(failure)
    name = failure.name_of(operand)
    whole = _whole_of_view(failure, operand)
    base = name.partition("[")[0]
    maker = f"a loop over {whole}" if whole else found["node"].lower()
    ways = (
        f"Compute out of place: {name} = {name} + y for {name} += y."
        if grouped(name) == name
        else "Compute out of place: x + y for x += y, x.mul(y) for x.mul_(y).",
        "Take the view by an index (x[0], x[:, :4]), which can be written into.",
    )
    if base != name:  # To assign to a part of it is a write too.
        ways = (f"Write into a clone: {replaced(base, 'clone()')} before the write.", ways[1])
    if whole:
        part = f"{whole}[i]{name.removeprefix(base)}"
        ways = (
            f"Write through an index: for i in range(len({whole})), and {part} for {name}.",
            f"Compute a list of new tensors in the loop, and torch.stack it in place of {whole}.",
        )
    return Explanation(
        f"{base} is one of several views that {maker} made of one "
        "tensor, and such a view cannot be written into in place.",
        ways,
        failure.details(),
    )


def _whole_of_view(failure: Failure, operand: Operand) -> str:
    """The tensor whose items a loop goes through, where the one written into is such an item."""
    base, frame = operand.text.partition("[")[0], failure.frames[operand.depth]
    whole = looped_over(frame, base)
    is_tensor = whole is not None and isinstance(frame.value_of(whole), Tensor)
    return as_source(whole, frame.file) if whole is not None and is_tensor else ""


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
            "Call all backwards before optimizer.step() (or what else writes into parameters), or "
            "run the forward again after it.",
            "Detach what the earlier part computed, if its gradient is not wanted: for a GAN, "
            "discriminator(fake.detach()).",
            when="parameter",
        ),
        SituationRow(
            "Backward of {place} needs {needed}, which was overwritten in place after the forward "
            "had saved it.",
            "Replace the write by an operation out of place: x = x + y for x += y, inplace=False "
            "for inplace=True, torch.where for x[mask] = y.",
            "Write into a clone: x = x.clone() before the write.",
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
    "one of several views": _several,
    "view of no_grad": _view_of_mode,
    "view of inference": _view_of_mode,
}
