"""Find the parameters that a backward reaches, and by what ways."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.function import BackwardCFunction

from torchtap.core.torch_nodes import (
    OVERWRITES,
    SGN,
    WITHOUT_FIRST_DERIVATIVE,
    WITHOUT_SECOND_SLOPE,
    WITHOUT_SLOPE,
    family,
    has_no_derivative,
)
from torchtap.core.torch_private import node_hooks, without_torch_function
from torchtap.graphs.node_walk import nodes_behind


class Doubt(IntEnum):
    """Doubts whether a way gives a parameter a gradient, the least first."""

    NONE = 0
    HOOK = 1
    """A hook of the program may change it."""
    CUSTOM = 2
    """A custom function's own backward decides, and may return none."""
    ZEROS = 3
    """The derivative of an operation is 0."""
    RAISES = 4
    """An operation has no derivative, and the backward raises."""


class Way(NamedTuple):
    """The best way from a parameter to what a backward starts from.

    Attributes:
        doubt: that remains about it.
        node: the node at which it arises; empty where there is none.
    """

    doubt: Doubt = Doubt.NONE
    node: str = ""


SURE = Way()


def reached_parameters(tensors: Iterable[Tensor], paths: Mapping[int, str]) -> dict[str, Way]:
    """Return the parameters that a backward of tensors comes to.

    Args:
        tensors: where it starts.
        paths: id of a parameter -> its path.

    Returns:
        Path -> the best way to it.
    """
    if not paths:
        return {}
    reached: dict[str, Way] = {}
    tensors = list(tensors)
    nodes, _ = nodes_behind(one.grad_fn for one in tensors if one.grad_fn is not None)
    todo = set(nodes)  # All that may be looked at, without those that have been.
    # Nodes to go to, by the doubt about the way to them.
    waiting: list[deque[tuple[Any, Way]]] = [deque() for _ in Doubt]
    for tensor in tensors:
        if tensor.grad_fn is not None:
            waiting[0].append((tensor.grad_fn, SURE))
        elif tensor.requires_grad and id(tensor) in paths:
            reached[paths[id(tensor)]] = SURE
    with node_hooks() as show_hooks:
        hooked = _HookedNodes(show_hooks)
        while any(waiting):
            node, way = next(queue for queue in waiting if queue).popleft()
            if node not in todo:
                continue
            if way.doubt < Doubt.HOOK and node in hooked:
                waiting[Doubt.HOOK].append((node, Way(Doubt.HOOK, _name(node))))
                continue
            todo.remove(node)
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) in paths:
                reached.setdefault(paths[id(variable)], way)
            for at, (following, _) in enumerate(node.next_functions):
                if following in todo:
                    doubt = _doubt(node, at)
                    onwards = Way(doubt, _name(node)) if doubt > way.doubt else way
                    waiting[onwards.doubt].append((following, onwards))
    return reached


def _name(node: Any) -> str:
    return str(node.name()).rpartition("::")[2]


def _doubt(node: Any, at: int) -> Doubt:
    """Return the doubt whether an input of a node gets a gradient."""
    name = family(_name(node))
    if has_no_derivative(name) or (at == 0 and name in WITHOUT_FIRST_DERIVATIVE):
        return Doubt.RAISES
    if _is_custom(node):
        return Doubt.CUSTOM
    is_zero = (
        name in WITHOUT_SLOPE
        or (at == 0 and name in OVERWRITES)
        or (at == 1 and name in WITHOUT_SECOND_SLOPE)
        or (name == SGN and not node._input_metadata[0].dtype.is_complex)
        or getattr(node, "_saved_rounding_mode", None) not in (None, "none")
    )
    return Doubt.ZEROS if is_zero else Doubt.NONE


def _is_custom(node: Any) -> bool:
    """Return whether the backward of a node was written in Python, and not by PyTorch."""
    home = str(getattr(getattr(type(node), "_forward_cls", None), "__module__", ""))
    return isinstance(node, BackwardCFunction) and home.partition(".")[0] != "torch"


class _HookedNodes:
    """The nodes with hooks of the program, on themselves or on their tensors.

    Args:
        show: tells the hooks of a node.
    """

    def __init__(self, show: Callable[[Any], tuple[list[Any], list[Any]]]) -> None:
        self._show = show
        self._of_tensors = set(_nodes_of_hooked_tensors())

    def __contains__(self, node: Any) -> bool:
        variable = getattr(node, "variable", None)
        hooks = [] if variable is None else [*(variable._backward_hooks or {}).values()]
        before, after = self._show(node)
        return node in self._of_tensors or any(map(_is_of_program, (*hooks, *before, *after)))


def _nodes_of_hooked_tensors() -> Iterator[Any]:
    """Yield nodes with hooks on a tensor; only the collector leads from a node to its tensors."""
    with without_torch_function():
        for tensor in gc.get_objects():
            # Not isinstance(), which asks a lazy object for its __class__ and may start its work.
            hooks = tensor._backward_hooks if issubclass(type(tensor), Tensor) else None
            if hooks and not tensor.is_leaf and any(map(_is_of_program, hooks.values())):
                yield tensor.grad_fn


def _is_of_program(hook: Any) -> bool:
    """Return whether a hook is not one of torchtap, which changes nothing."""
    return not str(getattr(hook, "__module__", "")).startswith("torchtap.")
