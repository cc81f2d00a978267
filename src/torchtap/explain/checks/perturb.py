"""The value that a map lies over, with the places of the map taken away or put in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.site import Site
from torchtap.core.tensors import kind_of
from torchtap.explain.attributions.variable import Variable, variable_of
from torchtap.explain.maps.map_values import is_channels_last
from torchtap.explain.target import Target

if TYPE_CHECKING:
    from torchtap.explain.maps.map_values import MapValues
    from torchtap.explain.recipe import Recipe

_BLUR = 1 / 16
"""Standard deviation of the blur, as a share of the longer side."""


@dataclass(frozen=True, eq=False, slots=True)
class Ground:
    """The tensor that a map lies over, and which of its dimensions the map's places are.

    Attributes:
        base: ``[B, ...]``: an input, or the value at a site.
        dims: the dimensions of ``base`` that are places; the others are channels.
        noun: what a place is.
    """

    base: Tensor
    dims: tuple[int, ...]
    noun: str

    @property
    def num_places(self) -> int:
        """Return the number of places in one row."""
        return int(torch.tensor([self.base.shape[dim] for dim in self.dims]).prod())

    def placed(self, values: Tensor) -> Tensor:
        """Return ``[B, places]`` as ``[B, ...]``, which goes together with ``base``."""
        shape = [1] * self.base.dim()
        shape[0] = values.shape[0]
        for dim in self.dims:
            shape[dim] = self.base.shape[dim]
        return values.reshape(shape)

    def weights(self, map_: MapValues) -> Tensor:
        """Return a map's value at each place, ``float64[B, places]``: resized, channels summed."""
        values = map_.values.double()
        if values.shape == self.base.shape:
            others = tuple(dim for dim in range(1, values.dim()) if dim not in self.dims)
            return (values.sum(others) if others else values).flatten(1)
        space = tuple(self.base.shape[dim] for dim in self.dims)
        if values.shape[1:] != space:
            values = replace(map_, values=values).resize(space).values
        return values.flatten(1)


def ground_of(map_: MapValues, recipe: Recipe[MapValues], base: Tensor) -> Ground:
    """Return the value that a map lies over, with the dimensions that are the map's places.

    Args:
        map_: the map.
        recipe: how it is made.
        base: what it lies over.

    Raises:
        InputError: the map does not fit over it.
    """
    values, size = map_.values, map_.size
    last = tuple(range(base.dim() - len(size), base.dim()))
    if values.shape == base.shape:
        if size and len(size) < base.dim():
            return Ground(base, last, _noun(len(size)))
        if base.dim() == 3:
            return Ground(base, (1,), "token")
        if is_channels_last(base.shape):
            return Ground(base, (1, 2), "pixel")
        return Ground(base, tuple(range(1, base.dim())), "feature")
    if size and values.dim() == 1 + len(size):
        if tuple(base.shape[1 - base.dim() :])[-len(size) :] == size and base.dim() > len(size):
            return Ground(base, last, _noun(len(size)))
        if tuple(base.shape[1 : 1 + len(size)]) == size:
            return Ground(base, tuple(range(1, 1 + len(size))), _noun(len(size)))
    raise InputError(
        f"The map is {kind_of(values)} over {size or 'no size'}, and what it lies over "
        f"({recipe.site or recipe.over or 'no input'}) is {kind_of(base)}: its places are not known"
    )


def _noun(space: int) -> str:
    return {1: "place", 2: "pixel", 3: "voxel"}.get(space, "place")


def mean_fill(ground: Ground) -> Tensor:
    """Return the mean of each channel over the places of its row; 0 where there are no channels."""
    base = ground.base
    if ground.noun == "feature":
        return torch.zeros_like(base)
    return base.double().mean(ground.dims, keepdim=True).to(base.dtype).expand_as(base)


def blurred(ground: Ground) -> Tensor:
    """Return a picture out of focus: a Gaussian, with 1/16 of the longer side as deviation."""
    base = ground.base
    if len(ground.dims) != 2 or ground.dims != (base.dim() - 2, base.dim() - 1):
        return mean_fill(ground)
    sides = base.shape[-2:]
    deviation = max(_BLUR * max(sides), 0.5)
    values = base.double().reshape(-1, 1, *sides)
    for dim in (2, 3):
        reach = min(round(3 * deviation), values.shape[dim] - 1)
        taps = torch.arange(-reach, reach + 1, dtype=torch.float64, device=base.device)
        kernel = torch.exp(-0.5 * (taps / deviation) ** 2)
        kernel = (kernel / kernel.sum()).reshape((1, 1, -1, 1) if dim == 2 else (1, 1, 1, -1))
        pad = (0, 0, reach, reach) if dim == 2 else (reach, reach, 0, 0)
        padded = torch.nn.functional.pad(values, pad, mode="reflect")
        values = torch.nn.functional.conv2d(padded, kernel)
    return values.reshape(base.shape).to(base.dtype)


@contextmanager
def varied(recipe: Recipe[MapValues], of: str) -> Iterator[Variable]:
    """Open the explained number of each row as a function of what the map lies over.

    Args:
        recipe: model, inputs and target.
        of: ``probability`` of the class, of a target that has one, or the ``score``.

    Raises:
        InputError: it is not known what the map lies over, or nothing can be put there.
        CaptureError: nothing comes by there.
    """
    subject, target = recipe.subject, recipe.target
    if recipe.site is None and recipe.over not in subject.inputs:
        raise InputError("it is not known which input the map lies over")
    site = recipe.site or Site("", "input", recipe.over)
    if of == "probability":
        target = Target(target.probabilities)
    opened = variable_of(subject, target, str(site), recipe.call, integers=True)
    with subject.held(), opened as (variable, _):
        if not variable.is_per_row:
            raise InputError("the target is no number of each row")
        yield variable
