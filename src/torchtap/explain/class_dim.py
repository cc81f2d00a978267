"""Find the dimension of logits that counts classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from torchtap.explain.extents import Extent, extents_of, is_like, widths_given


def class_dim_of(
    modules: Mapping[str, nn.Module], inputs: Mapping[str, Tensor], shape: Sequence[int]
) -> int | None:
    """Dimension 1 (``[B, C, H, W]``) or the last (``[B, T, C]``); ``None`` where nothing tells.

    Two things tell: a convolution that gives as many channels as dimension 1 has, or a linear layer
    as wide as the last one; and an input whose places are the other dimensions. They must not
    disagree.

    Args:
        modules: of the model.
        inputs: of the model.
        shape: of the logits.
    """
    rank = len(shape)
    if rank < 3:
        return rank - 1
    by_size = {dim for one in extents_of(modules, inputs) for dim in _dims_by_size(one, shape)}
    by_width = set(_dims_by_width(modules, shape))
    both = by_size & by_width
    found = both or (by_size | by_width if not (by_size and by_width) else set())
    return found.pop() if len(found) == 1 else None


def _dims_by_size(extent: Extent, shape: Sequence[int]) -> Iterator[int]:
    """The dimension that is left where the others are the places of an input."""
    rank, size = len(shape), extent.size
    if rank - 2 != len(size) or not extent.is_told:
        return
    fits = [_are_places(shape[2:], size), _are_places(shape[1:-1], size)]
    if fits[0] is not fits[1]:
        yield 1 if fits[0] else rank - 1


def _are_places(grid: Sequence[int], size: Sequence[int]) -> bool:
    """Return whether a grid fits a size; equality for a sequence, whose ratios always agree."""
    return tuple(grid) == tuple(size) if len(size) == 1 else is_like(grid, size)


def _dims_by_width(modules: Mapping[str, nn.Module], shape: Sequence[int]) -> Iterator[int]:
    rank = len(shape)
    if shape[1] == shape[-1]:
        return  # As many classes as places: what a module gives fits either.
    for module in modules.values():
        for width, is_first in widths_given(module, rank):
            dim = 1 if is_first else rank - 1
            if width == shape[dim]:
                yield dim
        if isinstance(module, nn.Embedding) and module.num_embeddings == shape[-1]:
            yield rank - 1  # Its weights are those of the head too.
