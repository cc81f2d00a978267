"""``tt.stats.cosine``: the cosine between neighbouring steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchtap.stats.catalogue.kinds import named_statistic, named_value

_SKETCH = 1 << 13
_EXACT = 1 << 16
"""Elements up to which a vector is kept as it is; above, in a sketch of 8,192 numbers."""
_CHUNK = 1 << 20


@named_value
@dataclass(frozen=True, slots=True)
class Trail:
    """The vector of the first and of the last step, and the cosines between neighbours."""

    first: Tensor | None = None
    last: Tensor | None = None
    total: float = 0.0
    count: int = 0


@named_statistic
@dataclass(frozen=True, slots=True)
class Cosine:
    """See :func:`cosine`."""

    name: str
    ranks_by_step: ClassVar[bool] = True

    def init(self) -> Trail:
        """Return a trail without a vector."""
        return Trail()

    def update(self, state: Trail, tensor: Tensor) -> Trail:
        """Add one more tensor to the vector of the running step."""
        vector = _vector(tensor)
        if state.last is not None and state.last.shape == vector.shape:
            vector = state.last + vector
        return Trail(vector, vector)

    def merge(self, one: Trail, two: Trail) -> Trail:
        """Merge two stretches of steps, the earlier first."""
        if one.last is None or two.first is None:
            return one if two.first is None else two
        total, count = one.total + two.total, one.count + two.count
        if one.last.shape == two.first.shape:
            cosine = torch.nn.functional.cosine_similarity(one.last, two.first, dim=0)
            total, count = total + float(cosine), count + 1
        return Trail(one.first, two.last, total, count)

    def merge_ranks(self, one: Trail, two: Trail) -> Trail:
        """Join both to one vector: its cosine to the next step is that of the whole batch."""
        if one.first is None or two.first is None or one.last is None or two.last is None:
            return one if two.first is None else two
        return Trail(torch.cat([one.first, two.first]), torch.cat([one.last, two.last]))

    def merge_shards(self, one: Trail, two: Trail, dim: int | None, num_dims: int | None) -> Trail:
        """Join both to one vector, wherever the tensor was cut."""
        return self.merge_ranks(one, two)

    def finish(self, state: Trail) -> float:
        """Return the mean cosine between neighbouring steps; NaN of a single step."""
        return state.total / state.count if state.count else math.nan


def cosine(*, name: str | None = None) -> Cosine:
    """Cosine between what flowed in one step and in the next: does a gradient keep its direction?

    Over two steps (``run.stats(site, step=[4, 5])``) it is theirs; over more, the mean over
    neighbours; NaN for one. Exact up to 65,536 elements; above that from a count sketch of 8,192
    numbers (Charikar, Chen & Farach-Colton 2002), with a standard error of about 0.011.

    Args:
        name: under which the result stands in ``extra``; ``cosine`` by default.

    Example:
        >>> import torch, torchtap as tt
        >>> statistic = tt.stats.cosine()
        >>> one = statistic.update(statistic.init(), torch.tensor([1.0, 0.0]))
        >>> two = statistic.update(statistic.init(), torch.tensor([1.0, 1.0]))
        >>> round(statistic.finish(statistic.merge(one, two)), 4)
        0.7071
    """
    return Cosine(name or "cosine")


def _vector(tensor: Tensor) -> Tensor:
    flat = tensor.flatten()
    if flat.numel() <= _EXACT:
        return flat.to(torch.float64)
    sketch = torch.zeros(_SKETCH, dtype=torch.float64, device=flat.device)
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK].to(torch.float64)
        hashed = _hash(torch.arange(start, start + part.numel(), device=flat.device))
        signs = 1.0 - 2.0 * ((hashed >> 40) & 1).to(torch.float64)
        sketch.index_add_(0, hashed & (_SKETCH - 1), part * signs)
    return sketch


def _hash(numbers: Tensor) -> Tensor:
    """Hash the places of elements, alike in every step (finaliser of splitmix64, Steele 2014)."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        numbers = (numbers ^ (numbers >> shift)) * factor
    return (numbers ^ (numbers >> 31)) & 0x7FFFFFFFFFFFFFFF
