"""The protocol of a statistic: its state, its update by a tensor, its merge and its result."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Statistic(Protocol):
    """One number or small vector kept instead of a value, with its merge.

    ``update`` gets each tensor detached, real and strided, with grad mode, autocast and inference
    mode off. It must not write into it, keep it, or draw random numbers. ``merge`` must be
    associative: calls, micro-batches, steps and ranks all go through it. States may be anything.

    Sparse and nested tensors are measured by their stored values, joined, which are not where they
    stand in the tensor. So a statistic is not available of them, and reading it says so, unless
    its class has ``needs_places = False``: ``update`` then gets these values. A sum or a maximum of
    magnitudes is over the values alone, since those that are not stored are zero.

    Attributes:
        name: under which the result stands in ``Statistics.extra``.

    Example:
        >>> import torch, torchtap as tt
        >>> class SumOfCubes:
        ...     name = "cubes"
        ...     def init(self):
        ...         return 0.0
        ...     def update(self, state, tensor):
        ...         return state + float(tensor.double().pow(3).sum())
        ...     def merge(self, one, two):
        ...         return one + two
        ...     def finish(self, state):
        ...         return state
        >>> model = torch.nn.ReLU()
        >>> with tt.watch(model, to=tt.Stats(statistics=[SumOfCubes()])) as w:
        ...     _ = model(torch.tensor([-1.0, 2.0]))
        >>> w.run.stats(".:output").extra["cubes"]
        8.0
    """

    @property
    def name(self) -> str:
        """The name under which the result stands in ``Statistics.extra``."""

    def init(self) -> Any:
        """The state of nothing."""

    def update(self, state: Any, tensor: Tensor) -> Any:
        """The state with one more tensor."""

    def merge(self, one: Any, two: Any) -> Any:
        """The state of both parts."""

    def finish(self, state: Any) -> Any:
        """The result."""


def needs_places(statistic: Statistic) -> bool:
    """Return whether a statistic depends on where in its tensor a value stands."""
    return bool(getattr(statistic, "needs_places", True))
