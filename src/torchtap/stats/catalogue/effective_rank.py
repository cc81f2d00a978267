"""``tt.stats.effective_rank``: how many directions the features use."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.stats.catalogue.kinds import named_statistic, named_value
from torchtap.stats.catalogue.results import OF_SHARDS, UNKNOWN_CUT, Missing


@named_value
@dataclass(frozen=True, slots=True)
class Covariance:
    """The mean of ``count`` rows, and the sum of the outer products of their deviations from it."""

    count: int = 0
    mean: Tensor | None = None
    products: Tensor | None = None


@named_statistic
@dataclass(frozen=True, slots=True)
class EffectiveRank:
    """See :func:`effective_rank`."""

    dim: int
    max_features: int
    name: str

    def init(self) -> Covariance:
        """Return the covariance of no row."""
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
        """Merge both (Chan, Golub & LeVeque 1979): a large mean does not swallow the rest."""
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

    def merge_shards(
        self, one: Covariance, two: Covariance, dim: int | None, num_dims: int | None
    ) -> Covariance | Missing:
        """Merge rows of all features; of shards with some of the features each none are known."""
        if dim is None or num_dims is None:
            return Missing(UNKNOWN_CUT)
        is_cut = -num_dims <= self.dim < num_dims and self.dim % num_dims == dim
        return Missing(OF_SHARDS) if is_cut else self.merge(one, two)

    def finish(self, state: Covariance) -> float:
        """Return the participation ratio of the eigenvalues; NaN of fewer than two rows."""
        if state.products is None or state.count < 2:
            return math.nan
        covariance = state.products / state.count
        squares = float(covariance.square().sum())
        return float(covariance.trace()) ** 2 / squares if squares else math.nan


def effective_rank(
    dim: int = -1, *, max_features: int = 1024, name: str | None = None
) -> EffectiveRank:
    """Measure how many directions the features really use: 1 (all alike) to their number.

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
