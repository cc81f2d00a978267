"""The operations between a loss and the output that it judges, as autograd's graph has them."""

from __future__ import annotations

from typing import Any

from torchtap.core.torch_nodes import family
from torchtap.hooks.graph_edges import Node
from torchtap.runs.rules.loss_operations import ARRANGE

Operation = tuple[str, dict[str, Any], list[int]]
"""Name of an operation, its settings, and the places of those that it was computed from.

The name of the output itself is empty; its setting ``of`` names the operation that made it.
"""
_MOST = 96
"""A loss with more operations is one that no rule knows."""
_SETTINGS = ("dim", "reduction", "self_sym_numel", "self_sym_sizes")
_HIGHEST = 2**63


def operations_between(loss: Node, ends: frozenset[int]) -> tuple[Operation, ...]:
    """Return the operations from a loss to the outputs of a model, the loss first.

    Those that no output enters are left out. Empty where there are too many, or no way.

    Args:
        loss: node of the number from which the backward begins.
        ends: numbers of the nodes of the tensors that the model returned.
    """
    order = _reached(loss, ends)
    leading: set[Node] = set()
    for node in reversed(order):  # Inputs come after what is computed of them.
        if number_of(node) in ends or any(one in leading for one, _ in node.next_functions):
            leading.add(node)
    kept = [node for node in order if node in leading]
    places = {node: place for place, node in enumerate(kept)}
    return tuple(_operation(node, places, is_end=number_of(node) in ends) for node in kept)


def _reached(loss: Node, ends: frozenset[int]) -> list[Node]:
    """Return all nodes up to the outputs, each after those that use it; none if too many."""
    found: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(loss, False)]
    done: list[Node] = []
    while stack:
        node, is_left = stack.pop()
        if is_left:
            done.append(node)
        elif node is not None and node not in found:
            found[node] = None
            if len(found) > _MOST:
                return []
            stack.append((node, True))
            if number_of(node) not in ends:
                stack += [(one, False) for one, _ in node.next_functions]
    return done[::-1]


def number_of(node: Node) -> int:
    """Return the number of a node, by which its thread made it."""
    number: int = node._sequence_nr()
    return number


def _operation(node: Node, places: dict[Node, int], *, is_end: bool) -> Operation:
    if is_end:
        return "", {"of": _made_by(node)}, []
    settings = {name: value for name in _SETTINGS if (value := _setting(node, name)) is not None}
    inputs = [places[one] for one, _ in node.next_functions if one in places]
    return _name(node), settings, inputs


def _name(node: Node) -> str:
    return family(type(node).__name__).removesuffix("Backward")


def _made_by(node: Node) -> str:
    """Return the name of what made an output, behind operations that only arrange it."""
    name = _name(node)
    while name in ARRANGE and node.next_functions and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
        name = _name(node)
    return name


def _setting(node: Node, name: str) -> Any:
    """Return a setting that a node keeps after its backward, as JSON has it."""
    value = getattr(node, f"_saved_{name}", None)
    if isinstance(value, tuple):
        value = [_signed(one) for one in value if type(one) is int]
    return _signed(value) if type(value) is int else value


def _signed(value: int) -> int:
    """Return a number that PyTorch hands out as unsigned."""
    return value - 2 * _HIGHEST if value >= _HIGHEST else value
