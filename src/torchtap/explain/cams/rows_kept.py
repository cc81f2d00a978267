"""Find in the graph whether dimension 0 stays the rows, from a layer's value to the scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchtap.explain.attributions.operations import name_of_node, nodes_from

_UNSIGNED = 2**64
"""Autograd keeps a dimension that is counted from the end as an unsigned number."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OF_EACH_ROW = _names(
    """
    add sub rsub mul div neg abs exp log sqrt pow where clone tocopy alias fill maskedfill
    relu threshold hardtanh clamp clampmin clampmax leakyrelu prelu prelukernel elu celu gelu silu
    mish tanh sigmoid softplus hardsigmoid hardswish logsigmoid nativedropout
    convolution mkldnnconvolution nativebatchnorm cudnnbatchnorm miopenbatchnorm nativegroupnorm
    nativelayernorm fusedrmsnorm constantpadnd
    maxpool2dwithindices maxpool3dwithindices avgpool2d avgpool3d adaptiveavgpool2d
    adaptiveavgpool3d mkldnnadaptiveavgpool2d adaptivemaxpool2d adaptivemaxpool3d
    upsamplenearest1d upsamplenearest2d upsamplenearest3d upsamplelinear1d upsamplebilinear2d
    upsampletrilinear3d bmm
    """
)
"""Their output has the dimensions of the operand, and each row comes from that of the operand, or,
where rows are mixed, from all of them."""

_VIEWS = _names("view unsafeview reshapealias")
_ALONG_ONE = _names("select slice cat gather unsqueeze squeeze softmax logsoftmax stack")
_OVER_SEVERAL = _names("mean sum amax amin")
_FIRST_OPERAND = {"addmm": 1, "mm": 0, "linear": 0}


def keeps_rows(scores: Any, end: Any) -> bool:
    """Return whether dimension 0 of a value is that of the scores, as far as operations are known.

    Args:
        scores: with their graph.
        end: the node that made the value.
    """
    on_way = {end, *nodes_from(scores, end)}
    return all(_keeps(node, on_way) for node in on_way if node is not end)


def _keeps(node: Any, on_way: set[Any]) -> bool:
    name, out = name_of_node(node), _shape(node, 0)
    rule = _rule(name)
    if rule is None or not out:
        return False
    for place, (before, number) in enumerate(node.next_functions):
        if before in on_way:
            own = _shape(before, number)
            if not own or own[0] != out[0] or not rule(node, place, own, out):
                return False
    return True


Rule = Callable[[Any, int, Sequence[int], Sequence[int]], bool]


def _rule(name: str) -> Rule | None:
    if name in _OF_EACH_ROW:
        return lambda node, place, own, out: len(own) == len(out)
    if name in _VIEWS:  # In the order of memory, parts of equal length begin alike.
        return lambda node, place, own, out: True
    if name in ("permute", "transpose"):
        return lambda node, place, own, out: _leaves_first(node, len(own))
    if name in _ALONG_ONE:
        return lambda node, place, own, out: _signed(node._saved_dim) % max(len(own), 1) != 0
    if name in _OVER_SEVERAL:
        return lambda node, place, own, out: _is_over_others(node, len(own))
    if name in _FIRST_OPERAND:
        return lambda node, place, own, out: place == _FIRST_OPERAND[name] and len(own) == len(out)
    return None


def _leaves_first(node: Any, rank: int) -> bool:
    dims = getattr(node, "_saved_dims", None)
    if dims is not None:
        return _signed(dims[0]) % rank == 0
    moved = (node._saved_dim0, node._saved_dim1)
    return all(_signed(one) % rank != 0 for one in moved)


def _is_over_others(node: Any, rank: int) -> bool:
    """Return whether a mean or sum is over dimensions that are named, and not over the first."""
    dims = getattr(node, "_saved_dim", None)
    if dims is None:
        return False
    several = [dims] if isinstance(dims, int) else list(dims)
    return bool(several) and all(_signed(one) % rank != 0 for one in several)


def _signed(dim: int) -> int:
    return dim - _UNSIGNED if dim >= _UNSIGNED // 2 else dim


def _shape(node: Any, number: int) -> tuple[int, ...]:
    """Return the shape of a node's output; empty where PyTorch does not tell."""
    known = getattr(node, "_input_metadata", None) or ()
    return tuple(known[number].shape) if number < len(known) else ()
