"""The operations between a value and a score: autograd's nodes, and what went in and came out."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils._python_dispatch import TorchDispatchMode

from torchtap.core.torch_private import sequence_number

Key = tuple[int, str]
"""Number of a node, and the name of its operator."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of an operator.

    Attributes:
        name: of the operator, in the form of :func:`name_of_node`.
        input: its first tensor, as it was before the call; ``None`` where it was not asked for.
        output: its first output, as it was after the call; likewise.
    """

    name: str
    input: Tensor | None = None
    output: Tensor | None = None


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operators while it is on, by the number of the node that autograd made for each.

    An operator is dispatched after its node was made and before the next one is, so the number of
    the next node is one more than that of its own. Operators without a node may run between the
    two.

    Args:
        inputs: names of operators whose inputs and outputs are kept.
        outputs: names of those whose outputs are kept.

    Attributes:
        found: number of a node and name -> the first operator of that name after it was made.
    """

    def __init__(self, *, inputs: Collection[str] = (), outputs: Collection[str] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[Key, Operation] = {}
        self._inputs = inputs
        self._outputs = outputs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._opname.rstrip("_").replace("_", "").lower()
        place = sequence_number() - 1, name
        if place in self.found:
            return func(*args, **(kwargs or {}))
        before = after = None
        keeps_input = name in self._inputs and args and isinstance(args[0], Tensor)
        if keeps_input:
            before = args[0].detach().clone()  # The operator may work in place.
        result = func(*args, **(kwargs or {}))
        if keeps_input or name in self._outputs:
            first = result[0] if isinstance(result, tuple | list) else result
            after = first.detach().clone()  # Later operators may overwrite it.
        self.found[place] = Operation(name, before, after)
        return result

    def key(self, node: Any) -> Key | None:
        """Return the key of a node's operator; ``None`` where the operator was not seen."""
        number, name = node._sequence_nr(), name_of_node(node)
        if (number, name) in self.found:
            return number, name
        # An in-place operator whose backward needs its input clones that first, with a node.
        after_clone = number + 1, name
        is_clone = (number + 1, "clone") in self.found
        return after_clone if is_clone and after_clone in self.found else None


def name_of_node(node: Any) -> str:
    """Return the name of a node's operator in small letters: ``relu`` of ``ReluBackward0``.

    A function of the model's own has a name in brackets, which is no operator's.
    """
    kind = type(node).__name__
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return f"<{kind}>"
    if kind == "CppFunction":
        return f"<{node.name()}>"
    return kind.rstrip("0123456789").removesuffix("Backward").lower()


def nodes_between(scores: Tensor, values: Tensor) -> Iterator[Any]:
    """Yield the nodes on any way back from the scores to the values."""
    return nodes_from(scores, get_gradient_edge(values).node)


def nodes_from(scores: Tensor, end: Any) -> Iterator[Any]:
    """Yield the nodes on any way back from the scores to a node, which is none of them."""
    above: dict[Any, list[Any]] = {}
    waiting = [scores.grad_fn]
    known = {scores.grad_fn, end}  # A node that leads to the end alone lies behind it.
    while waiting:
        node: Any = waiting.pop()
        for following, _ in node.next_functions:
            if following is None:
                continue
            above.setdefault(following, []).append(node)
            if following not in known:
                known.add(following)
                waiting.append(following)
    waiting, found = [end], {end}
    while waiting:
        for node in above.get(waiting.pop(), ()):
            if node not in found:
                found.add(node)
                waiting.append(node)
                yield node
