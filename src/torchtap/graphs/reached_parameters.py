"""Find the parameters that a backward reaches, and by what ways."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction

from torchtap.core.torch_nodes import OVERWRITES, WITHOUT_SLOPE, family
from torchtap.graphs.autograd import MOST_NODES

SURE = ""
"""A way on which each node hands a gradient on."""
CUSTOM = "the custom function "


def reached_parameters(tensors: Iterable[Tensor], paths: Mapping[int, str]) -> dict[str, str]:
    """Return the parameters that a backward of tensors comes to.

    Args:
        tensors: where it starts.
        paths: id of a parameter -> its path.

    Returns:
        Path -> :data:`SURE`, or where no way is: in words, what stands on the best one. A custom
        function, whose backward may return no gradient, is better than an operation whose
        derivative is 0.
    """
    reached: dict[str, str] = {}
    seen: set[Any] = set()
    # Nodes to go to, by what stands on the way: nothing, a custom function, a derivative of 0.
    waiting: list[deque[tuple[Any, str]]] = [deque(), deque(), deque()]
    for tensor in tensors:
        if tensor.grad_fn is not None:
            waiting[0].append((tensor.grad_fn, SURE))
        elif tensor.requires_grad and id(tensor) in paths:
            reached[paths[id(tensor)]] = SURE
    while any(waiting) and len(seen) < MOST_NODES:
        level = next(number for number, queue in enumerate(waiting) if queue)
        node, said = waiting[level].popleft()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) in paths:
            reached.setdefault(paths[id(variable)], said)
        for at, (following, _) in enumerate(node.next_functions):
            if following is not None and following not in seen:
                doubt, words = _doubt(node, at)
                waiting[max(level, doubt)].append((following, words if doubt > level else said))
    return reached


def _doubt(node: Any, at: int) -> tuple[int, str]:
    """Return whether an input of a node gets a gradient (0 yes, 1 perhaps, 2 of zeros), and why."""
    name = str(node.name()).rpartition("::")[2]
    if _is_custom(node):
        return 1, f"{CUSTOM}{name.removesuffix('Backward')}"
    is_rounded = getattr(node, "_saved_rounding_mode", None) not in (None, "none")
    is_overwritten = at == 0 and family(name) in OVERWRITES
    is_zero = is_rounded or is_overwritten or family(name) in WITHOUT_SLOPE
    return (2, name) if is_zero else (0, SURE)


def _is_custom(node: Any) -> bool:
    """Return whether the backward of a node was written in Python, and not by PyTorch."""
    home = str(getattr(getattr(type(node), "_forward_cls", None), "__module__", ""))
    return isinstance(node, BackwardCFunction) and home.partition(".")[0] != "torch"
