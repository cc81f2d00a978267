"""Writes in place that autograd cannot bear."""

from __future__ import annotations

import ast
import re

from torch import Tensor, nn
from torch.optim import Optimizer

from torchtap.core.text import plural
from torchtap.failures.assignments import item_of_loop, loop_over
from torchtap.failures.cuts import modules_at
from torchtap.failures.failure import UNNAMED, Explanation, Failure
from torchtap.failures.frame import shown_file
from torchtap.failures.graph_reading import (
    OVERWRITTEN,
    Node,
    Saved,
    module_before,
    parameters_at,
    place_of,
    saved_by,
    shares_memory,
)
from torchtap.failures.operands import Operand
from torchtap.failures.recording import num_unseen, recorded_writes
from torchtap.failures.source import grouped, replaced, written as as_source
from torchtap.failures.writes import Write, writer_of

Details = tuple[tuple[str, str], ...]


def _overwritten(failure: Failure, found: re.Match[str]) -> Explanation:
    stale = [one for node in failure.nodes for one in saved_by(node) if one.state == OVERWRITTEN]
    if not stale:
        return Explanation(
            f"A tensor that backward needs ({found['tensor']}) was overwritten in place after the "
            f"forward had saved it.",
            ("Replace the operation in place by one out of place: x = x + y for x += y.",),
        )
    # Of several, that which PyTorch speaks of; of those, backward comes to the youngest first.
    meant = [one for one in stale if one.said == failure.text] or stale
    needed = max(meant, key=lambda one: int(one.node._sequence_nr()))
    weight = _weight(failure, needed)
    if weight is not None:
        return _changed_weight(failure, needed, *weight, int(found["then"]))
    place, module = place_of(needed.node, failure.names)
    writer = _writer(failure, needed)
    since = int(found["then"])
    label, written = writer_of(needed.tensor, writer, failure.frames, failure.names, since)
    texts = list(dict.fromkeys(one.text for one in written))
    if module is None and len(written) == 1:
        module = _around(failure, needed.node, written[0])
    return Explanation(
        f"Backward of {place} needs {_what(needed, failure)}, which was overwritten in place after "
        "the forward had saved it.",
        (
            "Replace the write by an operation out of place: x = x + y for x += y, inplace=False "
            "for inplace=True, torch.where for x[mask] = y.",
            "Write into a clone: x = x.clone() before the write.",
        ),
        (
            ("needed by", place),
            *((label, text) for text in texts[:6]),
            *_unseen(needed.tensor, since, int(found["now"])),
            ("versions", f"saved at {found['then']}, now at {found['now']}"),
        ),
        "" if module is None else failure.names.module(module),
    )


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


def _what(saved: Saved, failure: Failure) -> str:
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
        for name, one in dict(module._buffers.items()).items():
            if tensor is not None and one is not None and shares_memory(one, tensor):
                return f"{path}.{name}".lstrip(".")
    return ""


def _writer(failure: Failure, needed: Saved) -> Node | None:
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
    ]
    for node in takes:
        kept = [one.tensor for one in saved_by(node) if one.tensor is not None]
        if tensor is not None and not _is_shaped(node, tensor):
            continue  # What is written in place keeps its shape.
        if tensor is not None and any(
            one.name.startswith("result")
            and one.tensor is not None
            and shares_memory(one.tensor, tensor)
            for one in saved_by(node)
        ):
            return node  # Its result stands in the memory of what it took.
        if "CopySlices" in node.name() or not kept:
            return node
    fitting = [node for node in takes if tensor is None or _is_shaped(node, tensor)]
    return fitting[0] if len(fitting) == 1 else None


def _is_shaped(node: Node, tensor: Tensor) -> bool:
    given = getattr(node, "_input_metadata", None) or ()
    if not given or tensor.is_nested:
        return True
    return any(tuple(one.shape) == tuple(tensor.shape) for one in given)


def _weight(failure: Failure, needed: Saved) -> tuple[str, nn.Module] | None:
    """The parameter whose memory was overwritten, with its module."""
    for parameter in parameters_at(needed.node):
        if needed.tensor is not None and not shares_memory(parameter, needed.tensor):
            continue
        name, holder = failure.names.tensor(parameter), failure.names.holder(parameter)
        if name is not None and holder is not None:
            return name, holder
    return None


def _changed_weight(
    failure: Failure, needed: Saved, name: str, holder: nn.Module, since: int
) -> Explanation:
    seen = [] if needed.tensor is None else recorded_writes(needed.tensor, since=since)
    steps = list(_steps(failure))
    return Explanation(
        f"The parameter {name} was changed between the forward and this backward, which needs its "
        f"value of then.",
        (
            "Call all backwards before optimizer.step() (or what else writes into parameters), or "
            "run the forward again after it.",
            "Detach what the earlier part computed, if its gradient is not wanted: for a GAN, "
            "discriminator(fake.detach()).",
        ),
        (
            ("needed by", place_of(needed.node, failure.names)[0]),
            *(("step at", text) for text in steps[:3]),
            *(("written by", f"{shown_file(one.file)}:{one.line}") for one in seen[:3]),
        ),
        failure.names.module(holder),
    )


def _steps(failure: Failure) -> list[str]:
    """Lines of the running functions that call the step of an optimizer."""
    found = []
    for frame in failure.frames:
        if frame.is_torch or frame.function is None:
            continue
        for node in ast.walk(frame.function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = frame.value_of(node.func.value)
                if node.func.attr == "step" and isinstance(owner, Optimizer):
                    found.append(
                        f"{shown_file(frame.file)}:{node.lineno}: {as_source(node, frame.file)}"
                    )
    return list(dict.fromkeys(found))


# ---------------------------------------------------------------------- refused at once


def _target(failure: Failure) -> tuple[str, Operand | None]:
    """Return the name and the operand that is written into: the operation's first tensor."""
    found = failure.tensors or failure.operands
    return (failure.name_of(found[0]), found[0]) if found else (UNNAMED, None)


def _leaf(failure: Failure, found: re.Match[str]) -> Explanation:
    name, operand = _target(failure)
    value = None if operand is None else operand.value
    state = failure.names.tensor(value) if isinstance(value, Tensor) else None
    holder = failure.names.holder(value) if isinstance(value, Tensor) else None
    kind = f"the parameter {state}" if state else f"{name}, a leaf that requires grad"
    part = "a part of " if found["view"] else ""
    return Explanation(
        f"The program writes in place into {part}{kind}, while grad mode is on: its gradient "
        "would be that of a value that is gone.",
        (
            "Put the write inside torch.no_grad(): to initialise or update it.",
            f"Compute a new tensor, if the write is part of the forward: "
            f"y = {grouped(name)}.clone() and write into y.",
        ),
        failure.details(),
        "" if holder is None else failure.names.module(holder),
    )


def _backward_hook(failure: Failure, found: re.Match[str]) -> Explanation:
    hooked = [
        failure.names.module(one)
        for _, one in failure.names.modules()
        if one._backward_hooks or one._backward_pre_hooks
    ]
    return Explanation(
        f"{failure.module_text} writes in place into what a module with a full backward hook "
        "returned or takes: the hook made a view of it, which cannot be written into.",
        (
            f"Set inplace=False: {failure.variable}.inplace = False, or x + y for x += y.",
            "Watch the gradient without such a hook: tt.watch(model, '...:grad_output') or "
            "tensor.register_hook bear writes in place.",
        ),
        (*(("hooked", one) for one in hooked[:4]), *failure.details()),
    )


def _function_view(failure: Failure, found: re.Match[str]) -> Explanation:
    name, _ = _target(failure)
    return Explanation(
        f"{name} is a view that the custom function {found['node']} returned, and is written into "
        f"in place: the backward of {found['node']} would be passed over.",
        (
            f"Write into a clone: {replaced(name, 'clone()')}.",
            f"Return a tensor of its own from {found['node']}.forward: x.view(...).clone(), or "
            f"no view.",
            "Compute out of place: x = x + y for x += y.",
        ),
        failure.details(),
    )


def _several(failure: Failure, found: re.Match[str]) -> Explanation:
    name, operand = _target(failure)
    whole = _whole_of_view(failure, operand)
    base = name.partition("[")[0]
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
        f"{base} is one of several views that {_maker_of_views(found['node'], whole)} made of one "
        "tensor, and such a view cannot be written into in place.",
        ways,
        failure.details(),
    )


def _maker_of_views(node: str, whole: str) -> str:
    return f"a loop over {whole}" if whole else node.lower()


def _whole_of_view(failure: Failure, operand: Operand | None) -> str:
    """The tensor whose items a loop goes through, where the one written into is such an item."""
    if operand is None:
        return ""
    base = operand.text.partition("[")[0]
    frame = failure.frames[operand.depth]
    loop = loop_over(frame, base)
    item = None if loop is None else item_of_loop(loop, base)
    if item is None or not isinstance(frame.value_of(item), Tensor):
        return ""
    return as_source(item, frame.file)


def _mode_view(failure: Failure, found: re.Match[str]) -> Explanation:
    name, _ = _target(failure)
    mode = "inference_mode" if "inference" in failure.text[:40] else "no_grad"
    return Explanation(
        f"{name} is a view that was taken under torch.{mode}(), and is written into with grad "
        f"mode on.",
        (
            "Take the view and write into it in the same mode: both outside of it, or both inside.",
            f"Write into a clone: {replaced(name, 'clone()')}.",
        ),
        failure.details(),
    )


SITUATIONS = {
    "overwritten": _overwritten,
    "leaf in place": _leaf,
    "view of a backward hook": _backward_hook,
    "view of a function": _function_view,
    "one of several views": _several,
    "view of no_grad": _mode_view,
    "view of inference": _mode_view,
}
