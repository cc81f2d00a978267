"""``tt.stats.top_k``: the largest elements and their places."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.text import number
from torchtap.stats.catalogue.kinds import named_statistic, named_value
from torchtap.stats.catalogue.results import OF_SHARDS, Missing
from torchtap.stats.catalogue.slices import magnitudes


@named_value
class Element(NamedTuple):
    """One element: its value, its place in its tensor, and which of the tensors that was.

    Example:
        >>> import torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> with tt.watch(relu, to=tt.Stats(statistics=[tt.stats.top_k(1)])) as w:
        ...     _ = relu(torch.tensor([[1.0, 5.0], [2.0, 3.0]]))
        >>> element = w.run.stats(".").extra["top_k"][0]
        >>> element.value, element.place
        (5.0, (0, 1))
    """

    value: float
    place: tuple[int, ...]
    tensor: int

    def in_words(self) -> str:
        """Return the value and its place, as a table shows them."""
        return f"{number(self.value)} at {list(self.place)}"


@named_value
@dataclass(frozen=True, slots=True)
class Largest:
    """The largest elements so far, and of how many tensors.

    Attributes:
        elements: largest magnitude first.
        num_tensors: how many were looked at.
    """

    elements: tuple[Element, ...] = ()
    num_tensors: int = 0


@named_statistic
@dataclass(frozen=True, slots=True)
class TopK:
    """See :func:`top_k`."""

    k: int
    name: str

    def init(self) -> Largest:
        """Return no element, of no tensor."""
        return Largest()

    def update(self, state: Largest, tensor: Tensor) -> Largest:
        """Take in one more tensor."""
        sizes = magnitudes(tensor).flatten()
        # topk takes NaN for the largest; here it is none.
        sizes = torch.where(sizes.isnan(), -1.0, sizes)
        places = sizes.topk(min(self.k, sizes.numel())).indices.tolist()
        flat = tensor.flatten()
        found = [
            Element(float(flat[place]), _unravel(place, tensor.shape), 0)
            for place in places
            if not math.isnan(float(flat[place]))
        ]
        return self.merge(state, Largest(tuple(found), 1))

    def merge(self, one: Largest, two: Largest) -> Largest:
        """Take the largest of both."""
        shifted = [e._replace(tensor=e.tensor + one.num_tensors) for e in two.elements]
        ranked = sorted([*one.elements, *shifted], key=lambda e: -abs(e.value))
        return Largest(tuple(ranked[: self.k]), one.num_tensors + two.num_tensors)

    def merge_shards(
        self, one: Largest, two: Largest, dim: int | None, num_dims: int | None
    ) -> Missing:
        """Say that places in a shard are not those in the whole."""
        return Missing(OF_SHARDS)

    def finish(self, state: Largest) -> list[Element]:
        """Return the elements, largest magnitude first."""
        return list(state.elements)


def top_k(k: int, *, name: str | None = None) -> TopK:
    """The ``k`` elements of largest magnitude (Inf included, NaN not), with their places.

    Reads the tensor once more and waits for the device.

    Args:
        k: how many.
        name: under which the result stands in ``extra``; ``top_k`` by default.

    Example:
        >>> import torch, torchtap as tt
        >>> with tt.watch(torch.nn.Identity(), to=tt.Stats(statistics=[tt.stats.top_k(1)])) as w:
        ...     pass
        >>> statistic = tt.stats.top_k(1)
        >>> statistic.finish(statistic.update(statistic.init(), torch.tensor([[1.0, -3.0]])))
        [Element(value=-3.0, place=(0, 1), tensor=0)]
    """
    if k < 1:
        raise InputError(f"k is {k}; expected a number from 1.")
    return TopK(k, name or "top_k")


def _unravel(place: int, shape: torch.Size) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        place, here = divmod(place, size)
        index.append(here)
    return tuple(reversed(index))
