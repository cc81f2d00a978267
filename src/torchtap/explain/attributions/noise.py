"""SmoothGrad and VarGrad: mean, mean square and variance of the maps of noisy copies."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of
from torchtap.core.text import number
from torchtap.explain.attributions.attribution_result import AttributionResult, wide
from torchtap.explain.attributions.many_runs import Batching, Many, check_count
from torchtap.explain.attributions.variable import Variable

Method = Callable[[Variable], AttributionResult]
Seed = int | torch.Generator

_SHARE = 0.15
"""Noise of the range of the values, within the 10 to 20 percent that the paper recommends."""


def generator_of(seed: Seed) -> torch.Generator:
    """Return random numbers of one's own, on the CPU; the global ones stay as they are.

    Raises:
        InputError: it is neither a number nor a generator.
    """
    if isinstance(seed, torch.Generator):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed is {kind_of(seed)}; expected a whole number or a torch.Generator.")
    return torch.Generator().manual_seed(seed)


def noisy_maps(
    combine: Callable[[Tensor, Tensor], Tensor],
    variable: Variable,
    method: Method,
    of: str,
    *,
    batching: Batching,
    n_samples: int = 25,
    stdevs: float | None = None,
    seed: Seed = 0,
) -> AttributionResult:
    """Combine the maps of noisy copies of a value.

    Args:
        combine: mean and variance (divided by their number) of the maps -> the result.
        variable: what it is made of.
        method: whose maps are taken.
        of: its name.
        batching: how the samples are run.
        n_samples: how many noisy copies.
        stdevs: standard deviation of the noise; by default 15 percent of the range of the values,
            of each row its own.
        seed: of the noise.
    """
    check_count("n_samples", n_samples)
    noisy = _Noisy(variable, method, of, batching, n_samples, generator_of(seed), stdevs)
    return noisy.found(combine)


def mean_of(mean: Tensor, variance: Tensor) -> Tensor:
    """Smilkov et al., "SmoothGrad: removing noise by adding noise" (2017): the mean."""
    return mean


def mean_square_of(mean: Tensor, variance: Tensor) -> Tensor:
    """Hooker et al., "A Benchmark for Interpretability Methods" (2019): the mean square."""
    return variance + mean.square()


def variance_of(mean: Tensor, variance: Tensor) -> Tensor:
    """Adebayo et al., "Local Explanation Methods for Deep Neural Networks" (2018): the variance."""
    return variance


class _Noisy:
    """Maps of noisy copies of a value."""

    def __init__(
        self,
        variable: Variable,
        method: Method,
        of: str,
        batching: Batching,
        n_samples: int,
        generator: torch.Generator,
        stdevs: float | None,
    ) -> None:
        self._variable = variable
        self._method = method
        self._of = of
        self._batching = batching
        self._num = n_samples
        self._generator = generator
        self._scale = _scale(variable.value, stdevs)

    def found(self, combine: Callable[[Tensor, Tensor], Tensor]) -> AttributionResult:
        """Return what ``combine`` makes of the mean and the variance of the maps."""
        notes: tuple[str, ...] = ()
        # One name holds all, so that an interrupt finds them as they belong together.
        state = 0, torch.zeros(()), torch.zeros(())
        with Many(self._variable, self._num, self._batching, "adding noise") as many:
            for part in many:
                result = self._method(self._copies(len(part)))
                maps = result.values.view(len(part), *self._variable.value.shape)
                state = _joined(*state, maps)
                notes = result.notes
        _, mean, variance = state
        said = tuple(note for note in notes if note not in many.notes)
        return AttributionResult(combine(mean, variance), None, (self._note, *said, *many.notes))

    @property
    def _note(self) -> str:
        scale = self._scale.flatten()
        low, high = float(scale.min()), float(scale.max())
        span = number(low) if low == high else f"{number(low)} to {number(high)}"
        return f"{self._num} samples of {self._of}, noise of standard deviation {span}"

    def _copies(self, times: int) -> Variable:
        value = self._variable.value
        noise = torch.stack([self._noise(value) for _ in range(times)])
        noisy = (wide(value) + noise * self._scale).to(value.dtype)
        rows = noisy.flatten(0, 1) if value.dim() else noisy[0]
        return self._variable.around(rows, times)

    def _noise(self, value: Tensor) -> Tensor:
        # One draw for each sample: the numbers do not depend on the size of the batches.
        dtype = wide(value).dtype
        own = self._generator.device
        noise = torch.randn(value.shape, generator=self._generator, dtype=dtype, device=own)
        return noise.to(value.device)


def _joined(num: int, mean: Tensor, squares: Tensor, maps: Tensor) -> tuple[int, Tensor, Tensor]:
    """Return mean and variance with more maps; the difference of large sums would lose digits.

    Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm" (1979), equation 2.1.
    """
    more = len(maps)
    whole = num + more
    own = maps.mean(0)
    step = own - mean
    spread = squares * (num / whole) + maps.var(0, correction=0) * (more / whole)
    return whole, mean + step * (more / whole), spread + step.square() * (num * more / whole**2)


def _scale(value: Tensor, stdevs: float | None) -> Tensor:
    if stdevs is not None:
        if isinstance(stdevs, bool) or not isinstance(stdevs, int | float) or stdevs < 0:
            raise InputError(f"stdevs is {stdevs!r}; expected a number from 0.")
        return wide(value).new_tensor(float(stdevs))
    if not value.is_floating_point():
        raise InputError(f"The value is {kind_of(value)}; noise can be added to floating ones.")
    rows = wide(value).flatten(1) if value.dim() > 1 else wide(value).reshape(1, -1)
    scale = _SHARE * (rows.amax(1) - rows.amin(1))
    return scale.view(-1, *[1] * (value.dim() - 1)) if value.dim() > 1 else scale.view(())
