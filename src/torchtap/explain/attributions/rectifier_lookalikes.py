"""Find nodes that may do what a rectifier does, without being the node of one.

Guided backpropagation and deconvolution would pass them by, and give the plain gradient there. So
operations are listed that are known to be no rectifier; masks and products are looked at, and all
others are refused by their name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor

from torchtap.explain.attributions.operations import Operations, name_of_node

Edge = tuple[Any, int]
"""A node, and which of its outputs."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAME_PLACE = _names("clone alias view unsafeview reshapealias expand tocopy neg add sub rsub")
_PRODUCTS = _names("mul div")
_BENDING = _names(
    """
    sigmoid tanh erf erfc exp expm1 hardsigmoid hardtanh clamp clampmin clampmax relu threshold
    softmax atan hardshrink softshrink sin cos log log1p sqrt rsqrt reciprocal
    """
)
_ELEMENTWISE = _SAME_PLACE | _PRODUCTS | _BENDING | {"pow"}

_LARGEST = _names(
    """
    max amax min amin topk sort kthvalue logsumexp maxpool2dwithindices maxpool3dwithindices
    adaptivemaxpool2d adaptivemaxpool3d
    """
)
_JOINS = _names("cat stack")
_TURNS = _names(
    "clone alias view unsafeview reshapealias expand transpose permute squeeze unsqueeze"
)

_MASKS = _names("where maskedfill")

RECORDED = frozenset({*_MASKS, "mul"})
"""Operators whose inputs and outputs are looked at."""

_NO_RECTIFIERS = _ELEMENTWISE | _names(
    """
    transpose permute t squeeze unsqueeze select slice index indexselect gather takealongdim split
    splitwithsizes unsafesplit unsafechunk unbind cat stack constantpadnd reflectionpad1d
    reflectionpad2d reflectionpad3d replicationpad1d replicationpad2d replicationpad3d flip roll
    repeat diagonal unfold unfoldbackward im2col col2im asstrided pixelshuffle pixelunshuffle
    channelshuffle nativechannelshuffle movedim
    nativedropout upsamplenearest1d upsamplenearest2d upsamplenearest3d upsamplelinear1d
    upsamplebilinear2d upsamplebicubic2d upsampletrilinear3d gridsampler2d gridsampler3d
    addmm addmv addbmm mm bmm mv dot baddbmm linear convolution mkldnnconvolution
    cudnnconvolution cudnnconvolutiontranspose trilinear sum mean nansum cumsum var std varmean
    stdmean norm linalgvectornorm logsumexp prod
    avgpool2d avgpool3d adaptiveavgpool2d adaptiveavgpool3d mkldnnadaptiveavgpool2d
    maxpool2dwithindices maxpool3dwithindices adaptivemaxpool2d adaptivemaxpool3d
    max amax min amin topk sort kthvalue
    nativebatchnorm cudnnbatchnorm miopenbatchnorm nativelayernorm nativegroupnorm fusedrmsnorm
    weightnorminterface logsoftmax safesoftmax maskedsoftmax thnnfusedlstmcell thnnfusedgrucell
    scaleddotproductflashattention scaleddotproductflashattentionforcpu
    scaleddotproductefficientattention scaleddotproductcudnnattention
    scaleddotproductfusedattentionoverrideable
    """
)
"""They move elements, mix them by weights, pool or normalise them, or bend them smoothly."""


def why_like_rectifier(node: Any, on_way: Collection[Any], operations: Operations) -> str:
    """Return why a node may do what a rectifier does; empty where it is known not to.

    Args:
        node: one on the way, that is no rectifier by its own name.
        on_way: all of them, and the one of the value.
        operations: those of :data:`RECORDED`, as they ran.
    """
    name = name_of_node(node)
    operands = [n for n, (one, _) in enumerate(node.next_functions) if one in on_way]
    if name in _MASKS or (name == "mul" and len(operands) == 1):
        return _why_mask(node, name, operands, operations)
    # x * sigmoid(x): both factors come from the same elements.
    if name in _PRODUCTS and len(operands) > 1 and _gates_itself(node):
        return (
            f"{node.name()}, a value times a function of itself, as SiLU and GELU are: it may let "
            f"negative values through, and guided backpropagation has no meaning there"
        )
    if name in _LARGEST and _competes(node, on_way):
        return f"{node.name()}, of values beside constants, which may be a rectifier: torch.relu is"
    if name not in _NO_RECTIFIERS or _keeps_negative(node, name):
        return f"{node.name()}, of which it is not known whether it acts as a rectifier"
    return ""


def _competes(node: Any, on_way: Collection[Any]) -> bool:
    """Return whether the values under a node that takes the largest were joined with constants."""
    waiting = [node]
    while waiting:
        for one, _ in waiting.pop().next_functions:
            if one not in on_way:
                continue
            name = name_of_node(one)
            if name in _JOINS and any(part not in on_way for part, _ in one.next_functions):
                return True
            if name in _JOINS | _TURNS:
                waiting.append(one)
    return False


def _keeps_negative(node: Any, name: str) -> bool:
    """Return whether an upper limit cuts off what is positive, as in ``h - h.clamp(max=0)``."""
    if name not in ("clamp", "clampmax"):
        return False
    limit = node._saved_max
    if isinstance(limit, Tensor):
        return bool((limit <= 0).any())
    return limit is not None and limit <= 0


def _why_mask(node: Any, name: str, operands: list[int], operations: Operations) -> str:
    """Return why a mask may be that of a rectifier: it parts the elements by their sign."""
    passes = _passes(node, name, operands)
    if passes is None:
        return ""
    why = (
        f"{node.name()}, a mask that lets values of one sign pass, which may be a rectifier "
        f"written by hand: write it as torch.relu"
    )
    key = operations.key(node)
    if key is None or len(operands) > 1:
        return why
    operation = operations.found[key]
    if operation.output is None or operation.input is None:
        return why
    passes = passes.expand_as(operation.output)
    passed, blocked = operation.output[passes], operation.output[:0]
    # Of a product by a mask the input tells the signs: the output of what is blocked is zero.
    if name == "mul" and operands == [0]:
        passed = operation.input.expand_as(passes)[passes]
    if name != "where" and operands == [0]:
        blocked = operation.input.expand_as(passes)[~passes]
    return why if _parts_by_sign(passed, blocked) else ""


def _passes(node: Any, name: str, operands: list[int]) -> Tensor | None:
    """Return where a mask lets the value pass; ``None`` where a factor is no mask."""
    if name == "where":
        condition: Tensor = node._saved_condition
        return condition if operands == [0] else ~condition
    if name == "maskedfill":
        mask: Tensor = node._saved_mask
        return ~mask
    factor = node._saved_other if operands == [0] else node._saved_self
    if not isinstance(factor, Tensor):
        return None
    is_mask = factor.dtype is torch.bool or bool((factor == 0).any())
    # A mask of nothing but ones lets everything pass for this value, and may block another.
    is_mask = is_mask or (factor.numel() > 1 and bool((factor == 1).all()))
    return factor != 0 if is_mask and factor.dim() else None


def _parts_by_sign(passed: Tensor, blocked: Tensor) -> bool:
    """Return whether all that passes may have been chosen by its sign."""
    above, below = bool((passed > 0).any()), bool((passed < 0).any())
    # What passes has both signs, so the sign did not choose it.
    if above and below:
        return False
    same = (above and bool((blocked > 0).any())) or (below and bool((blocked < 0).any()))
    return not same


def _gates_itself(node: Any) -> bool:
    """Return whether the factors of a product depend on the same elements, one of them bent."""
    (one, bends), (other, bends_too) = (_sources(edge) for edge in node.next_functions[:2])
    return bool(one & other) and (bends or bends_too)


def _sources(edge: Edge) -> tuple[set[Edge], bool]:
    """Return the edges that an edge is computed from element by element, and whether any bends."""
    sources: set[Edge] = set()
    bends = False
    for one in _walk(edge, sources):
        bends = bends or name_of_node(one) in _BENDING
    return sources, bends


def _walk(edge: Edge, found: set[Edge]) -> Iterator[Any]:
    waiting = [edge]
    while waiting:
        one = waiting.pop()
        if one[0] is None or one in found:
            continue
        found.add(one)
        if name_of_node(one[0]) in _ELEMENTWISE:
            yield one[0]
            waiting.extend(one[0].next_functions)
