"""Find the inputs with places that a map can lie over, and the dimensions of these places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

_MOST_IMAGE_CHANNELS = 4
_MOST_ANISOTROPY = 1.5
"""Largest anisotropy of a smaller picture: sides are rounded, and strides mostly the same."""
_MASKED = -1e4
"""Largest number that is added to scores of attention where nothing may be seen."""
_CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)


@dataclass(frozen=True, slots=True)
class Extent:
    """An input that a map can lie over.

    Attributes:
        name: of the input.
        rows: how many rows it has.
        size: its length, height and width, or depth, height and width.
        channel_dim: which of its dimensions counts channels; ``None`` for token numbers.
        is_told: whether the modules tell which; otherwise it is the usual one.
        other: of a signal, how many channels it has, which may be its positions.
    """

    name: str
    rows: int
    size: tuple[int, ...]
    channel_dim: int | None
    is_told: bool = True
    other: int = 0

    def turned(self) -> Extent:
        """Return the same signal with its channels last."""
        return replace(self, size=(self.other,), channel_dim=2)


def extents_of(modules: Mapping[str, nn.Module], inputs: Mapping[str, Tensor]) -> list[Extent]:
    """Return the pictures, volumes, signals and sequences of tokens among the inputs of a model.

    Pictures are ``[B, C, H, W]``, or ``[B, H, W, C]`` where only the last dimension is one to
    four, and no convolution takes dimension 1 for the channels. Masks and position numbers count
    only where there is nothing else.

    Args:
        modules: of the model.
        inputs: name -> tensor.
    """
    by_size: dict[int, Extent] = {}  # A tensor that is given twice is one input.
    for name, one in inputs.items():
        extent = _extent(modules, name, one)
        if extent is not None:
            by_size.setdefault(id(one), extent)
    extents = list(by_size.values())
    if len(extents) < 2:
        return extents
    return [one for one in extents if not _is_beside(inputs[one.name])] or extents


def _extent(modules: Mapping[str, nn.Module], name: str, one: Tensor) -> Extent | None:
    if one.is_nested or one.layout is not torch.strided or one.is_complex():
        return None
    shape = tuple(one.shape)
    if one.is_floating_point() and one.dim() == 3:
        dim = _channels_of_sequence(modules, shape)
        size, other = (shape[1], shape[2]) if dim == 2 else (shape[2], shape[1])
        return Extent(name, shape[0], (size,), dim or 1, dim is not None, other)
    if one.dim() in (4, 5):
        is_last = are_channels_last(modules, shape)
        spatial = shape[1:-1] if is_last else shape[2:]
        return Extent(name, shape[0], spatial, one.dim() - 1 if is_last else 1)
    if not one.is_floating_point() and one.dim() == 2:
        return Extent(name, shape[0], (shape[1],), None)
    return None


def _is_beside(one: Tensor) -> bool:
    """Return whether a tensor goes along with another: a mask, or the numbers of positions."""
    if one.dtype is torch.bool or not one.numel():
        return True
    values = one.detach()
    low, high = (float(end) for end in values.double().aminmax())
    if high <= 1 and (low >= 0 or low <= _MASKED):
        return bool(((values == low) | (values == high)).all())
    if one.is_floating_point() or one.dim() != 2:
        return False
    places = torch.arange(one.shape[1], device=one.device)
    return bool((values - values[:, :1] == places).all()) and one.shape[1] > 1


def are_channels_last(modules: Mapping[str, nn.Module], shape: Sequence[int]) -> bool:
    """Return whether an input has its channels last: a picture, a volume or a feature sequence.

    The first module that takes as many channels decides for sequences. Pictures and volumes have
    them last where only the last dimension is one to four, unless the first convolution takes
    dimension 1.

    Args:
        modules: of the model, in the order in which they stand in it.
        shape: of the input.
    """
    if len(shape) == 3:
        return _channels_of_sequence(modules, shape) == 2
    if not shape[-1] <= _MOST_IMAGE_CHANNELS < shape[1]:
        return False
    taken = (one for module in modules.values() for one in _taken(module, len(shape)))
    stem = next((width for width, is_first in taken if is_first), None)
    return stem != shape[1]


def _channels_of_sequence(modules: Mapping[str, nn.Module], shape: Sequence[int]) -> int | None:
    """Return the dimension that counts channels, if a module takes as many as one of them."""
    for module in modules.values():
        for width, is_first in _taken(module, 3):
            dim = 1 if is_first else 2
            if width == shape[dim]:
                return dim
    return None


# ---------------------------------------------------------------------- numbers of channels


def widths(module: nn.Module, rank: int) -> Iterator[tuple[int, bool]]:
    """Yield numbers of channels that a module takes or gives, and whether they come first."""
    yield from _taken(module, rank)
    yield from widths_given(module, rank)


def widths_given(module: nn.Module, rank: int) -> Iterator[tuple[int, bool]]:
    """Yield numbers of channels that a module gives, and whether they come first."""
    if isinstance(module, _CONVOLUTIONS):
        if module.weight.dim() == rank:
            yield module.out_channels, True
    elif isinstance(module, nn.Linear):
        yield module.out_features, False
    elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
        yield module.embedding_dim, False


def _taken(module: nn.Module, rank: int) -> Iterator[tuple[int, bool]]:
    """Yield numbers of channels that a module takes, and whether they come first."""
    if isinstance(module, _CONVOLUTIONS):
        if module.weight.dim() == rank:
            yield module.in_channels, True
    elif isinstance(module, _NORMS):
        suffix = type(module).__name__[-2:]  # "2d"; that of a SyncBatchNorm says nothing.
        if suffix == f"{rank - 2}d" or not suffix[0].isdigit():
            yield module.num_features, True
    elif isinstance(module, nn.GroupNorm):
        yield module.num_channels, True
    elif isinstance(module, nn.Linear):
        yield module.in_features, False
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
        if len(module.normalized_shape) == 1:
            yield module.normalized_shape[0], False
    elif isinstance(module, nn.MultiheadAttention):
        yield module.embed_dim, False
    elif isinstance(module, nn.RNNBase):
        yield module.input_size, False


# ---------------------------------------------------------------------- sizes


def is_like(grid: Iterable[int], size: Sequence[int]) -> bool:
    """Return whether a map may be a smaller picture: about the same factor in each dimension."""
    factors = [whole / one for whole, one in zip(size, grid, strict=True)]
    return min(factors) >= 1 and max(factors) <= _MOST_ANISOTROPY * min(factors)


def is_about_as_wide(grid: Sequence[int], other: Sequence[int], size: Sequence[int]) -> bool:
    """Return whether a grid keeps the ratios of a picture at least as well as another one does."""
    first, second = (_anisotropy(one, size) for one in (grid, other))
    return first <= second and first <= _MOST_ANISOTROPY


def _anisotropy(grid: Iterable[int], size: Sequence[int]) -> float:
    """Return how much more one dimension of a picture would be shrunk than another, from 1."""
    factors = [whole / one for whole, one in zip(size, grid, strict=True)]
    return max(factors) / min(factors)
