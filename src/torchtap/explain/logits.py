"""The tensor of logits in what a model returned, and its dimension of classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of
from torchtap.core.tree import leaves
from torchtap.explain.extents import Extent, extents_of, is_like, widths_given

_MOST_NAMES = 4


@dataclass(frozen=True, slots=True)
class Logits:
    """A tensor in an output.

    Attributes:
        name: of its leaf; empty where the output is the tensor.
        values: the tensor.
        note: that the output has others; empty where it has none, or the name says enough.
    """

    name: str
    values: Tensor
    note: str = ""

    @property
    def text(self) -> str:
        """Return the name of the logits as text: ``output``, or ``output[logits]``."""
        return f"output[{self.name}]" if self.name else "output"

    @property
    def code(self) -> str:
        """Return the code by which a function of the output ``out`` reaches the logits."""
        parts = self.name.split(".") if self.name else []
        return "out" + "".join(f"[{part}]" if part.isdigit() else f"[{part!r}]" for part in parts)


def logits_of(output: Any) -> Logits:
    """Return the logits in a model's output, and where they stand in it.

    They are the tensor called ``logits``, or else the first floating one with dimensions.

    Raises:
        InputError: there is no floating tensor, or each picture has a dict of its own.
    """
    _refuse_detections(output)
    floating = [(name, one) for name, one in leaves(output) if one.is_floating_point()]
    for name, one in floating:
        if name.rpartition(".")[2] == "logits":
            return Logits(name, one)
    if not floating:
        raise InputError(
            f"The model returned {kind_of(output)} without a floating tensor, so no class can have "
            f"won. Give target= a function of the output."
        )
    several = [(name, one) for name, one in floating if one.dim()] or floating
    name, first = several[0]
    if len(several) == 1:
        return Logits(name, first)
    shown = ", ".join(f"{name} ({kind_of(one)})" for name, one in several[1 : 1 + _MOST_NAMES])
    more = ", ..." if len(several) > 1 + _MOST_NAMES else ""
    note = (
        f"the model returned {len(several)} floating tensors, and the target is of the first, "
        f"output[{name}]; a function of the output takes another: {shown}{more}"
    )
    return Logits(name, first, note)


def _refuse_detections(output: Any) -> None:
    """Refuse the output of a detector: a list with a dict of boxes and scores for each picture."""
    if not isinstance(output, list | tuple) or not output:
        return
    if not all(isinstance(one, Mapping) for one in output):
        return
    keys = list(map(str, output[0]))
    key = "scores" if "scores" in keys else next(iter(keys), "scores")
    raise InputError(
        f"The model returned a {type(output).__name__} of {len(output)} dicts ("
        f"{', '.join(keys) or 'empty'}), as detectors do, one for each picture, so there is no "
        f"tensor with a row of logits for each. Give target= a function of the output that makes "
        f"one number for each picture, as in "
        f"target=lambda out: torch.stack([one[{key!r}].sum() for one in out])."
    )


# ---------------------------------------------------------------------- classes


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
    dims = both or (by_size | by_width if not (by_size and by_width) else set())
    return dims.pop() if len(dims) == 1 else None


def _dims_by_size(extent: Extent, shape: Sequence[int]) -> Iterator[int]:
    """Yield the dimension that is left where the others are the places of an input."""
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
        return  # There are as many classes as places: a width fits either.
    for module in modules.values():
        for width, is_first in widths_given(module, rank):
            dim = 1 if is_first else rank - 1
            if width == shape[dim]:
                yield dim
        if isinstance(module, nn.Embedding) and module.num_embeddings == shape[-1]:
            yield rank - 1  # Its weights are those of the head too.
