"""A case: one training with its label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn


class Watched(Protocol):
    """A watch as a training uses it."""

    def step(self) -> None:
        """Close a step."""

    def log(self, **numbers: Any) -> None:
        """Keep numbers of the step."""

    def close(self) -> None:
        """Take the watch off."""


Watching = Callable[[nn.Module], Watched]


@dataclass(frozen=True, slots=True)
class Case:
    """A training and what is wrong with it.

    ``train(watching)`` builds the model, hands it to ``watching``, trains, closes the watch and
    returns the loss on data that was not trained on (lower is better).
    """

    name: str
    train: Callable[[Watching], float]
    # Accepted names of rules, the best first; empty where nothing is wrong.
    kinds: tuple[str, ...] = ()
    # Accepted paths of modules, the best first; empty where the fault has no place.
    places: tuple[str, ...] = ()
    # The healthy case of the same design.
    sibling: str = ""

    @property
    def is_broken(self) -> bool:
        """Return whether a fault was planted."""
        return bool(self.kinds)
