"""Reads the autograd graph that an error left behind: what is freed, overwritten, and whose."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from torchtap.core import torch_messages
from torchtap.core.torch_messages import says
from torchtap.core.torch_nodes import VIEWS_AND_CASTS
from torchtap.failures.module_names import Names

Node = Any
_MOST_NODES = 20_000
"""Nodes that are walked to. Once Python has seen the nodes of a chain, PyTorch frees them one in
another, which overflows the stack (and ends the process) from about 50,000 on."""
_MOST_NEAR = 1000
FREED, OVERWRITTEN, HELD = "freed", "overwritten", "held"


class SavedValue(NamedTuple):
    """A tensor that a node keeps for backward.

    Attributes:
        node: that keeps it.
        name: by which it keeps it, such as ``self`` or ``result``.
        state: ``freed``, ``overwritten`` or ``held``.
        tensor: it, also where it was overwritten; ``None`` if it was freed, or packed by a hook.
        said: what PyTorch says when it is read; empty if it is held.
    """

    node: Node
    name: str
    state: str
    tensor: Tensor | None
    said: str = ""


def leaves_of(tensors: Iterable[Tensor], *without: Node) -> list[Tensor]:
    """The leaves that lead to these tensors, not through some nodes."""
    held = (getattr(node, "variable", None) for node in nodes_of(tensors, *without))
    return [one for one in held if isinstance(one, Tensor)]


def nodes_of(tensors: Iterable[Tensor], *without: Node) -> list[Node]:
    """All nodes that lead to these tensors, those next to them first; not through some nodes."""
    roots = (tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None)
    return list(islice(_towards_inputs(roots, *without), _MOST_NODES))


def _towards_inputs(roots: Iterable[Node], *without: Node) -> Iterator[Node]:
    """Nodes, and those that lead to them, each once and the nearest first; not through some."""
    todo = deque(roots)
    # Nodes hash by identity, and one is held for each, so that no wrapper is made anew.
    seen = {*todo, *without}
    while todo:
        node = todo.popleft()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)


def saved_by(node: Node) -> Iterator[SavedValue]:
    """Yield the values that a node saves for backward. Runs no hooks on saved tensors."""
    for attribute in _slots_of(type(node)):
        name = attribute.removeprefix("_raw_saved_")
        try:
            raw = getattr(node, attribute)
        except RuntimeError:  # Of a custom function, whose slots go with what is freed.
            yield SavedValue(node, name, FREED, None)
            continue
        for one in raw if isinstance(raw, tuple | list) else (raw,):
            yield from _saved(node, name, one)


_slots: WeakKeyDictionary[type, tuple[str, ...]] = WeakKeyDictionary()
"""Class of nodes -> the attributes of what it keeps; custom functions come and go."""


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = _slots.get(kind)
    if slots is None:
        slots = _slots[kind] = tuple(one for one in dir(kind) if one.startswith("_raw_saved_"))
    return slots


def _saved(node: Node, name: str, raw: Any) -> Iterator[SavedValue]:
    # Unpacking would run code of the program.
    if raw.unpack_hook is not None:
        return
    tensor = raw.data
    # Nodes of functions that were written in Python have no underscore before the name.
    attribute = "saved_tensors" if name == "tensors" else f"_saved_{name}"
    try:
        # The handle shows the tensor also where autograd would refuse it: only unpacking tells.
        unpacked = getattr(node, attribute)
    except RuntimeError as error:
        state = FREED if says(error, torch_messages.FREED) else OVERWRITTEN
        yield SavedValue(node, name, state, tensor, str(error))
        return
    if tensor is not None and unpacked is not None:
        yield SavedValue(node, name, HELD, tensor)


def operation(node: Node) -> str:
    """Return the name of a node without its ending: ``Sigmoid`` of ``SigmoidBackward0``."""
    return re.sub(r"Backward\d*$", "", str(node.name()).rpartition("::")[2])


def parameters_at(node: Node) -> list[Tensor]:
    """The leaves that a node takes, at once or as views."""
    parameters: list[Tensor] = []
    for following, _ in getattr(node, "next_functions", ()):
        # weight.t(), and a cast by autocast, stand between a node and the parameter.
        while following is not None:
            variable = getattr(following, "variable", None)
            if isinstance(variable, Tensor):
                parameters.append(variable)
                break
            if following.name() not in VIEWS_AND_CASTS:
                break
            following = following.next_functions[0][0] if following.next_functions else None
    return parameters


def module_of(node: Node, names: Names) -> nn.Module | None:
    """Return the module whose parameters a node takes."""
    states = (names.state(variable) for variable in parameters_at(node))
    return next((state.module for state in states if state is not None), None)


def module_before(node: Node, names: Names) -> nn.Module | None:
    """Return the nearest module with parameters on the way from a node towards the inputs."""
    nearest = islice(_towards_inputs([node]), _MOST_NEAR)
    modules = (module_of(one, names) for one in nearest)
    return next((module for module in modules if module is not None), None)


def place_of_node(node: Node, names: Names) -> tuple[str, nn.Module | None]:
    """Return where a node was made, in words, and the module if it is certain."""
    # A node that takes a parameter is of the module that owns it; for others the nearest such node
    # on the way to the inputs tells.
    own = module_of(node, names)
    if own is not None:
        return f"{node.name()} of {names.module(own)}", own
    before = module_before(node, names)
    if before is None:
        return str(node.name()), None
    by_class = _following(before, operation(node), names)
    if by_class is not None:
        return f"{node.name()} of {names.module(by_class)}", by_class
    return f"{node.name()}, after {names.module(before)}", None


def _following(before: nn.Module, kind: str, names: Names) -> nn.Module | None:
    """Return the module of a class that stands behind another one in a Sequential."""
    wanted = kind.lower()
    for _, parent in names.modules():
        if not isinstance(parent, nn.Sequential):
            continue
        children = list(parent)
        if not any(one is before for one in children):
            continue
        at = next(number for number, one in enumerate(children) if one is before)
        for child in children[at + 1 :]:
            if type(child).__name__.lower() == wanted:
                return child
            # Behind the next module with parameters the node would lead to that one first.
            if any(True for _ in child.parameters()):
                break
    return None


def shares_memory(a: Tensor | None, b: Tensor | None) -> bool:
    """Return whether two tensors share one storage."""
    if a is None or b is None:
        return False
    try:
        # By address, not by _cdata: a saved tensor that was unpacked may have another storage
        # object over the same memory.
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):  # Of sparse tensors, for instance.
        return a is b
