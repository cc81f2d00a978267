"""Statistics beside the default ones: the largest elements, cosine between steps, rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.stats.custom.slices import magnitudes

_SKETCH = 1 << 13
_EXACT = 1 << 16
"""Elements up to which a vector is kept as it is; above, in a sketch of 8,192 numbers."""
_CHUNK = 1 << 20


# ---------------------------------------------------------------------- the largest elements


class Element(NamedTuple):
    """One element: its value, its place in its tensor, and which of the tensors that was."""

    value: float
    place: tuple[int, ...]
    tensor: int


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest elements so far, and of how many tensors.

    Attributes:
        elements: largest magnitude first.
        num_tensors: how many were looked at.
    """

    elements: tuple[Element, ...] = ()
    num_tensors: int = 0


@dataclass(frozen=True, slots=True)
class TopK:
    """See :func:`top_k`."""

    k: int
    name: str

    def init(self) -> Largest:
        """None."""
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
        """The largest of both."""
        shifted = [e._replace(tensor=e.tensor + one.num_tensors) for e in two.elements]
        ranked = sorted([*one.elements, *shifted], key=lambda e: -abs(e.value))
        return Largest(tuple(ranked[: self.k]), one.num_tensors + two.num_tensors)

    def finish(self, state: Largest) -> list[Element]:
        """The elements, largest magnitude first."""
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


# ---------------------------------------------------------------------- from step to step


@dataclass(frozen=True, slots=True)
class Trail:
    """The vector of the first and of the last step, and the cosines between neighbours."""

    first: Tensor | None = None
    last: Tensor | None = None
    total: float = 0.0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Cosine:
    """See :func:`cosine`."""

    name: str

    def init(self) -> Trail:
        """No vector."""
        return Trail()

    def update(self, state: Trail, tensor: Tensor) -> Trail:
        """Add one more tensor to the vector of the running step."""
        vector = _vector(tensor)
        if state.last is not None and state.last.shape == vector.shape:
            vector = state.last + vector
        return Trail(vector, vector)

    def merge(self, one: Trail, two: Trail) -> Trail:
        """Two stretches of steps, the earlier first."""
        if one.last is None or two.first is None:
            return one if two.first is None else two
        total, count = one.total + two.total, one.count + two.count
        if one.last.shape == two.first.shape:
            cosine = torch.nn.functional.cosine_similarity(one.last, two.first, dim=0)
            total, count = total + float(cosine), count + 1
        return Trail(one.first, two.last, total, count)

    def finish(self, state: Trail) -> float:
        """Mean cosine between neighbouring steps; NaN of a single step."""
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
    """The same for the same place in every step (the finaliser of splitmix64, Steele 2014)."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        numbers = (numbers ^ (numbers >> shift)) * factor
    return (numbers ^ (numbers >> 31)) & 0x7FFFFFFFFFFFFFFF


# ---------------------------------------------------------------------- rank


@dataclass(frozen=True, slots=True)
class Covariance:
    """Of ``count`` rows: their mean, and the sum of the products of what deviates from it."""

    count: int = 0
    mean: Tensor | None = None
    products: Tensor | None = None


@dataclass(frozen=True, slots=True)
class EffectiveRank:
    """See :func:`effective_rank`."""

    dim: int
    max_features: int
    name: str

    def init(self) -> Covariance:
        """Nothing."""
        return Covariance()

    def update(self, state: Covariance, tensor: Tensor) -> Covariance:
        """Add the rows of one more tensor."""
        if not -tensor.dim() <= self.dim < tensor.dim():
            return state
        rows = tensor.movedim(self.dim, -1).reshape(-1, tensor.shape[self.dim]).to(torch.float64)
        if rows.shape[1] > self.max_features:
            raise InputError(
                f"effective_rank would need {rows.shape[1]} x {rows.shape[1]} numbers per site; "
                f"at most {self.max_features} features are allowed. Raise max_features, or watch "
                f"fewer sites."
            )
        rows = rows[rows.isfinite().all(1)]
        if not len(rows):
            return state
        mean = rows.mean(0)
        rows = rows - mean
        return self.merge(state, Covariance(len(rows), mean, rows.T @ rows))

    def merge(self, one: Covariance, two: Covariance) -> Covariance:
        """Both together (Chan, Golub & LeVeque 1979): a large mean does not swallow the rest."""
        if one.mean is None or one.products is None:
            return two
        if two.mean is None or two.products is None or one.mean.shape != two.mean.shape:
            return one
        share = two.count / (one.count + two.count)
        delta = two.mean - one.mean
        between = torch.outer(delta, delta) * (one.count * share)
        return Covariance(
            one.count + two.count, one.mean + delta * share, one.products + two.products + between
        )

    def finish(self, state: Covariance) -> float:
        """Participation ratio of the covariance's eigenvalues; NaN of fewer than two rows."""
        if state.products is None or state.count < 2:
            return math.nan
        covariance = state.products / state.count
        squares = float(covariance.square().sum())
        return float(covariance.trace()) ** 2 / squares if squares else math.nan


def effective_rank(
    dim: int = -1, *, max_features: int = 1024, name: str | None = None
) -> EffectiveRank:
    """How many directions the features really use: 1 (all alike) to their number.

    The participation ratio ``(tr C)^2 / tr(C^2)`` of the covariance ``C`` of the features over all
    samples, tokens and places, kept in float64. Rows with NaN or Inf are left
    out. Costs ``8 features^2`` bytes per site and a matrix product per tensor.

    Args:
        dim: which dim holds the features: -1 in a transformer, 1 in a convolutional network.
        max_features: more of them are refused.
        name: under which the result stands in ``extra``; ``effective_rank`` by default.

    Example:
        >>> import torch, torchtap as tt
        >>> statistic = tt.stats.effective_rank()
        >>> rows = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
        >>> statistic.finish(statistic.update(statistic.init(), rows))
        1.0
    """
    return EffectiveRank(dim, max_features, name or "effective_rank")
