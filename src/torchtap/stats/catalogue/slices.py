"""Statistics of each slice along a dim: per channel, per unit, per token, per head."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchtap.core.printed import Printed
from torchtap.core.printed_page import Page
from torchtap.stats.catalogue.kinds import named_statistic, named_value
from torchtap.stats.catalogue.results import UNKNOWN_CUT, Missing
from torchtap.stats.catalogue.show_slices import one_line, show_slices
from torchtap.stats.kernels import native
from torchtap.stats.rows import (
    L1,
    M2,
    MAX,
    MEAN,
    MIN,
    NUM_FINITE,
    NUMEL,
    SUM_SQUARES,
    ZEROS,
    empty_rows,
    merged_rows,
)


@named_value
@dataclass(frozen=True, eq=False, repr=False)
class Slices(Printed):
    """The result of :func:`along`: one number per slice, ``float64[slices]`` each.

    Printing it shows one line. Everything but the counts is over the finite elements, as in
    ``Statistics``, and NaN where there are none. ``zeros`` and ``saturated`` are shares of all
    elements.

    Attributes:
        rows: ``float64[slices, 16]``, see :mod:`torchtap.stats.statistics`.
        saturated_elements: elements per slice whose magnitude reached ``bound``.
        notes: what else is to be known: ``3 of 10 steps`` where a window was measured in part.

    Example:
        >>> import torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> with tt.watch(relu, to=tt.Stats(statistics=[tt.stats.along(1, name="channel")])) as w:
        ...     _ = relu(torch.tensor([[1.0, -5.0], [2.0, -3.0]]))
        >>> slices = w.run.stats(".").extra["channel"]
        >>> slices.absmax.tolist(), slices.dead_slices()
        ([2.0, 0.0], [1])
    """

    rows: Tensor
    saturated_elements: Tensor
    notes: tuple[str, ...] = ()

    @property
    def numel(self) -> Tensor:
        """Elements."""
        return self.rows[:, NUMEL]

    @property
    def mean(self) -> Tensor:
        """Return the mean of the finite elements, NaN where there are none."""
        return torch.where(self._some, self.rows[:, MEAN], math.nan)

    @property
    def std(self) -> Tensor:
        """Population standard deviation of the finite elements."""
        return torch.where(
            self._some, (self.rows[:, M2] / self.rows[:, NUM_FINITE]).sqrt(), math.nan
        )

    @property
    def l1(self) -> Tensor:
        """Sum of magnitudes."""
        return self.rows[:, L1]

    @property
    def l2(self) -> Tensor:
        """Euclidean norm."""
        return self.rows[:, SUM_SQUARES].sqrt()

    @property
    def min(self) -> Tensor:
        """The smallest finite element."""
        return torch.where(self._some, self.rows[:, MIN], math.nan)

    @property
    def max(self) -> Tensor:
        """The largest finite element."""
        return torch.where(self._some, self.rows[:, MAX], math.nan)

    @property
    def absmax(self) -> Tensor:
        """The largest magnitude."""
        return torch.maximum(self.min.abs(), self.max.abs())

    @property
    def zeros(self) -> Tensor:
        """Share of zeros, 0 to 1."""
        return self.rows[:, ZEROS] / self.rows[:, NUMEL]

    @property
    def saturated(self) -> Tensor:
        """Share of elements whose magnitude reached ``bound``, 0 to 1."""
        return self.saturated_elements / self.rows[:, NUMEL]

    def dead_slices(self, share: float = 1.0) -> list[int]:
        """Return slices of which at least a ``share`` of the elements is zero: dead units."""
        return torch.nonzero(self.zeros >= share).flatten().tolist()

    def saturated_slices(self, share: float = 1.0) -> list[int]:
        """Return slices of which at least a ``share`` of the elements is saturated."""
        return torch.nonzero(self.saturated >= share).flatten().tolist()

    def as_dict(self) -> dict[str, list[float]]:
        """Return name -> one number per slice."""
        names = ("numel", "mean", "std", "l1", "l2", "min", "max", "absmax", "zeros", "saturated")
        return {name: getattr(self, name).tolist() for name in names}

    def with_notes(self, notes: tuple[str, ...]) -> Slices:
        """Return the same slices with these notes."""
        return replace(self, notes=notes)

    @property
    def _some(self) -> Tensor:
        return self.rows[:, NUM_FINITE] > 0

    def __repr__(self) -> str:
        return one_line(
            self.numel,
            self.absmax,
            num_dead=len(self.dead_slices()),
            num_saturated=len(self.saturated_slices()),
            notes=self.notes,
        )

    def _page(self) -> Page:
        return show_slices(repr(self), self.as_dict())


@named_statistic
@dataclass(frozen=True, slots=True)
class Along:
    """See :func:`along`.

    Example:
        >>> import torchtap as tt
        >>> isinstance(tt.stats.along(1), tt.stats.Along)
        True
    """

    dim: int
    bound: float
    name: str

    def init(self) -> Slices:
        """Return no slices."""
        return Slices(empty_rows(0), torch.zeros(0, dtype=torch.float64))

    def update(self, state: Slices, tensor: Tensor) -> Slices:
        """Measure one more tensor; one without this dim counts as a single slice."""
        if not -tensor.dim() <= self.dim < tensor.dim():
            tensor = tensor.reshape(1, -1)
            dim = 0
        else:
            dim = self.dim % tensor.dim()
        return self.merge(state, Slices(_rows(tensor, dim).cpu(), self._reached(tensor, dim)))

    def _reached(self, tensor: Tensor, dim: int) -> Tensor:
        """Return elements per slice whose magnitude is ``bound`` or more."""
        if not math.isfinite(self.bound):
            return torch.zeros(tensor.shape[dim], dtype=torch.float64)
        reached = magnitudes(tensor) >= self.bound
        others = [other for other in range(tensor.dim()) if other != dim]
        return (reached.sum(others) if others else reached).to(torch.float64).cpu()

    def merge(self, one: Slices, two: Slices) -> Slices:
        """Merge slice by slice; where one has more of them, take the rest as it is."""
        longer, shorter = (one, two) if len(one.rows) >= len(two.rows) else (two, one)
        common = len(shorter.rows)
        if not common:
            return longer
        # numpy takes a third of the time of PyTorch for few numbers.
        rows, others = longer.rows.numpy().copy(), shorter.rows.numpy()
        counts = longer.saturated_elements.clone()
        counts[:common] += shorter.saturated_elements
        if native.available() and others.flags.c_contiguous:
            native.merge_rows(rows, others)
        else:
            rows[:common] = merged_rows(rows[:common], others)
        return Slices(torch.from_numpy(rows), counts)

    def merge_shards(
        self, one: Slices, two: Slices, dim: int | None, num_dims: int | None
    ) -> Slices | Missing:
        """Put the slices of two shards one after the other where they were cut along this dim."""
        if dim is None or num_dims is None:
            return Missing(UNKNOWN_CUT)
        if not (-num_dims <= self.dim < num_dims and self.dim % num_dims == dim):
            return self.merge(one, two)
        reached = torch.cat([one.saturated_elements, two.saturated_elements])
        return Slices(torch.cat([one.rows, two.rows]), reached)

    def finish(self, state: Slices) -> Slices:
        """Return the slices."""
        return state

    def cut(self, tensor: Tensor) -> tuple[int, int] | None:
        """Return how many slices a tensor has, and how many elements of each lie together."""
        if math.isfinite(self.bound):
            return None
        if not -tensor.dim() <= self.dim < tensor.dim():
            return 1, 1
        dim = self.dim % tensor.dim()
        if tensor.shape[dim] == 1:  # Its stride says nothing.
            return 1, 1
        return (tensor.shape[dim], tensor.stride(dim)) if dim else None

    def of_rows(self, rows: NDArray[np.float64]) -> Slices:
        """Return slices with these rows."""
        return Slices(torch.from_numpy(rows), torch.zeros(len(rows), dtype=torch.float64))


def along(dim: int, *, bound: float = math.inf, name: str | None = None) -> Along:
    """Statistics of each slice along a dim: ``along(1)`` is per channel of an image.

    Over a window of steps (``run.stats(site, step=range(90, 100))``) the merged counts tell dead
    and saturated units from those that only rested.

    Args:
        dim: which dim is kept; negative ones count from the end.
        bound: magnitude from which on an element counts as saturated, such as 0.99 after tanh.
        name: under which the result stands in ``extra``; ``along(dim)`` by default.

    Returns:
        a statistic whose result is :class:`Slices`.

    Example:
        >>> import torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> with tt.watch(relu, to=tt.Stats(statistics=[tt.stats.along(1)])) as w:
        ...     _ = relu(torch.tensor([[1.0, -1.0], [3.0, -2.0]]))
        >>> slices = w.run.stats(".:output").extra["along(1)"]
        >>> slices.absmax.tolist(), slices.dead_slices()
        ([3.0, 0.0], [1])
    """
    return Along(dim, bound, name or f"along({dim})")


def magnitudes(tensor: Tensor) -> Tensor:
    """Return magnitudes as floats: -128 has no magnitude in int8, and a bool has none at all."""
    return (tensor if tensor.is_floating_point() else tensor.to(torch.float64)).abs()


def _rows(tensor: Tensor, dim: int) -> Tensor:
    outer = math.prod(tensor.shape[:dim])
    inner = math.prod(tensor.shape[dim + 1 :])
    shaped = tensor.reshape(outer, tensor.shape[dim], inner)
    rows = empty_rows(tensor.shape[dim], tensor.device)
    if native.available() and tensor.device.type == "cpu" and tensor.dtype in native.DTYPES:
        native.accumulate_channels(shaped.contiguous(), rows)
        return rows
    return _stock_rows(shaped.movedim(1, 0).reshape(tensor.shape[dim], outer * inner), rows)


def _stock_rows(slices: Tensor, rows: Tensor) -> Tensor:
    """Measure ``slices``, ``[slices, elements]``, by stock operations."""
    if not slices.shape[1]:
        return rows
    wide = slices.to(torch.float64)
    finite = wide.isfinite()
    values = torch.where(finite, wide, 0.0)
    num_finite = finite.sum(1)
    mean = values.sum(1) / num_finite.clamp(min=1)
    rows[:, NUMEL] = slices.shape[1]
    rows[:, NUM_FINITE] = num_finite.to(torch.float64)
    rows[:, MEAN] = mean
    rows[:, M2] = torch.where(finite, values - mean[:, None], 0.0).square().sum(1)
    rows[:, L1] = values.abs().sum(1)
    rows[:, SUM_SQUARES] = values.square().sum(1)
    rows[:, MIN] = torch.where(finite, wide, math.inf).amin(1)
    rows[:, MAX] = torch.where(finite, wide, -math.inf).amax(1)
    rows[:, ZEROS] = (wide == 0).sum(1).to(torch.float64)
    return rows
