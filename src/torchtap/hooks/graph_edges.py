"""Reads the autograd graph: where arguments enter it, and what became of a view or a parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from torchtap.core.torch_nodes import ACCUMULATE, CAST, COMPILED, COPY_SLICES, VIEWS_AND_CASTS
from torchtap.core.torch_private import sequence_number

Node = Any
Edge = tuple[Node, int]

EDITED = "torchtap edit"
"""Key in the metadata of an identity node: the path of the module that the node stands before.

An edit of the gradient of an argument puts the node there, see ``edits/README.md``.
"""


class _Detour(torch.autograd.Function):
    """An operation on a tensor of any layout, made to see where its node leads."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """Return a number that nothing is computed from."""
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        """Nothing: no backward runs through it."""


def from_one_compiled_graph(tensors: Iterable[Tensor]) -> frozenset[int]:
    """Return ids of those that one compiled graph returned together with another of them.

    Outside of it, it is not known what the graph made of the one on its way to the other.
    """
    by_node: dict[Node, set[int]] = {}
    for tensor in tensors:
        node: Node = tensor.grad_fn
        if node is not None and node.name() == COMPILED:
            by_node.setdefault(node, set()).add(id(tensor))
    return frozenset().union(*(ids for ids in by_node.values() if len(ids) > 1))


class Geometry(NamedTuple):
    """The geometry of a view in its base, in elements."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    base_size: torch.Size
    base_stride: tuple[int, ...]

    @staticmethod
    def whole(base: Tensor) -> Geometry:
        """Return a base as a view of itself."""
        return Geometry(base.size(), base.stride(), 0, base.size(), base.stride())

    def cut(self, base_gradient: Tensor) -> Tensor:
        """Return the part of a gradient of the base that belongs to the view."""
        # ``as_strided`` counts in the strides of the base, and autograd hands gradients on in any:
        # expanded, transposed, channels last.
        if base_gradient.stride() != self.base_stride:
            same = torch.empty_strided(
                self.base_size,
                self.base_stride,
                dtype=base_gradient.dtype,
                device=base_gradient.device,
            )
            base_gradient = same.copy_(base_gradient)
        offset = base_gradient.storage_offset() + self.offset
        return base_gradient.as_strided(self.size, self.stride, offset)


class InputEdge(NamedTuple):
    """An edge of the graph by which argument number ``place`` comes in.

    ``geometry`` is set when the edge is that of the argument's base: it counts only where the
    module overwrote its view in place (a ``CopySlices`` node).
    """

    place: int
    geometry: Geometry | None


class BoundaryEdge(NamedTuple):
    """A slot of a node, made inside the module, whose gradient goes out to an argument."""

    slot: int
    place: int
    geometry: Geometry | None


def edge_of(tensor: Tensor) -> Edge:
    """Return the edge into which gradients of ``tensor`` flow."""
    grad_fn = tensor.grad_fn
    if grad_fn is not None:
        return grad_fn, tensor.output_nr
    if tensor.is_nested:
        with torch.enable_grad():
            # A nested leaf is asked by way of its values, whose node leads to it.
            return tensor.values().grad_fn.next_functions[0]  # type: ignore[union-attr]
    if tensor.layout is torch.strided:
        try:
            edge = get_gradient_edge(tensor)
            return edge.node, edge.output_nr
        except RuntimeError:  # It looks through a view, which this kind of tensor lacks.
            pass
    with torch.enable_grad():
        detour: Any = _Detour.apply(tensor)  # type: ignore[no-untyped-call]
    return detour.grad_fn.next_functions[0]  # type: ignore[no-any-return]


def before_edits(edge: Edge, path: str) -> tuple[Edge, int]:
    """Find the edge behind the identities that gradient edits of a module put there.

    Returns:
        the edge, and the number of the first identity (that of the next node if there is none).
    """
    # An edit makes its identities after the argument and before the module: the nodes of the module
    # begin behind them.
    first = sequence_number()
    while edge[0] is not None and edge[0].metadata.get(EDITED) == path:
        first = edge[0]._sequence_nr()
        edge = edge[0].next_functions[0]
    return edge, first


def geometry_in_base(view: Tensor) -> Geometry:
    """Geometry of ``view`` in ``view._base``."""
    base = view._base
    assert base is not None
    offset = int(view.storage_offset() - base.storage_offset())
    return Geometry(view.size(), view.stride(), offset, base.size(), base.stride())


def input_edges(arguments: Iterable[tuple[int, Tensor]]) -> dict[Edge, list[InputEdge]]:
    """Return the edges by which arguments (number, tensor that requires grad) enter a module."""
    by_edge: dict[Edge, list[InputEdge]] = {}
    for place, tensor in arguments:
        by_edge.setdefault(edge_of(tensor), []).append(InputEdge(place, None))
        base = tensor._base if tensor._is_view() else None
        if base is not None and base.requires_grad and base.dtype == tensor.dtype:
            entry = InputEdge(place, geometry_in_base(tensor))
            by_edge.setdefault(edge_of(base), []).append(entry)
    return by_edge


def boundary_edges(
    outputs: Iterable[Tensor],
    entering: Mapping[Edge, list[InputEdge]],
    first: int,
    edited: str | None = None,
) -> dict[Node, list[BoundaryEdge]]:
    """Walk from a module's outputs back to where its arguments entered.

    Args:
        outputs: tensors with a ``grad_fn``.
        entering: from :func:`input_edges`, taken when the module was entered.
        first: :func:`sequence_number` at that moment; older nodes belong to others.
        edited: go no further than to the identities of gradient edits of this path.

    Returns:
        node -> its slots whose gradients leave the module towards an argument. The sum over all
        of them is the gradient that flows through the module.
    """
    by_node: dict[Node, list[BoundaryEdge]] = {}
    roots = {tensor.grad_fn for tensor in outputs}
    # A list and no recursion: the graph of a recurrent net is deeper than Python's stack.
    todo: list[Node] = [node for node in roots if node is not None and node._sequence_nr() >= first]
    seen = set(todo)
    while todo:
        node = todo.pop()
        for slot, edge in enumerate(node.next_functions):
            following = edge[0]
            if following is None:
                continue
            if edited is not None and following.metadata.get(EDITED) == edited:
                # Seen before edits, the gradient is the one that enters the identity, whose first
                # slot it is.
                through = entering.get(before_edits(edge, edited)[0], ())
                by_node[following] = [BoundaryEdge(0, place, None) for place, _ in through]
                continue
            hits = [
                BoundaryEdge(slot, place, geometry)
                for place, geometry in entering.get(edge, ())
                if geometry is None or is_copy_slices(node)
            ]
            if hits:
                by_node.setdefault(node, []).extend(hits)
            # AccumulateGrad has the largest number there is
            # (torch/csrc/autograd/functions/accumulate_grad.cpp): it is visited, and leads nowhere.
            elif following not in seen and following._sequence_nr() >= first:
                seen.add(following)
                todo.append(following)
    return by_node


def is_copy_slices(node: Node) -> bool:
    """Return whether the node is autograd's record of a write into a view."""
    return bool(node.name() == COPY_SLICES)


def overwriting_node(view: Tensor, first: int) -> Node | None:
    """Return the ``CopySlices`` by which the base of ``view`` was first overwritten.

    Args:
        view: it, or another view of the same memory, was written into.
        first: :func:`sequence_number` before that.

    Returns:
        the node; ``None`` where its gradient is not that of the view: the base itself was
        overwritten too, or the view shows it in another dtype.
    """
    base = view._base if view._is_view() else None
    if base is None or base.dtype != view.dtype:
        return None
    node, found = base.grad_fn, None
    # Each write into a view rebases the history of its base: a CopySlices is put on top, whose
    # first edge leads to what was there: "View + Inplace update for base tensor" in
    # torch/csrc/autograd/functions/tensor.h.
    while node is not None and node._sequence_nr() >= first:
        if not is_copy_slices(node):
            return None
        found, node = node, node.next_functions[0][0]
    return found


def num_casts(tensor: Tensor) -> int | None:
    """Count the casts that made a tensor of a parameter; ``None`` if other operations did too.

    It is 0 for a parameter and for its views (``weight.t()``, which ``Linear`` saves), 1 for what
    autocast hands to an operation.
    """
    base = tensor._base
    if type(tensor) is not Tensor and isinstance(tensor, torch.nn.Parameter):
        return 0  # The type first, since a parameter's isinstance() runs Python.
    if base is not None and isinstance(base, torch.nn.Parameter):
        return 0
    node: Node = tensor.grad_fn
    number = 0
    while node is not None:
        name = type(node).__name__  # As node.name(), which makes a string anew.
        if name not in VIEWS_AND_CASTS:
            is_leaf = name == ACCUMULATE and isinstance(node.variable, torch.nn.Parameter)
            return number if is_leaf else None
        number += name == CAST
        node = node.next_functions[0][0]
    return None
