"""The optimizers that a program made, and their states in the running step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from torchtap.capture.training.optimizer_cycle import ModelState, OptimizerCycle, OptimizerState


class KnownOptimizers:
    """The optimizers that were seen, without keeping any alive.

    Args:
        cycle: follows the steps of those that are there.

    Attributes:
        num_seen: how many there were.
    """

    def __init__(self, cycle: OptimizerCycle) -> None:
        self.num_seen = 0
        self._cycle = cycle
        self._states: dict[int, tuple[weakref.ref[Optimizer], OptimizerState]] = {}

    def add(self, optimizer: Optimizer) -> OptimizerState:
        """Know an optimizer from now on."""
        self._forget_gone()
        ref = weakref.ref(optimizer)
        state = OptimizerState(lambda: _params_of(ref()), lambda: _has_gradients(ref()))
        self._states[id(optimizer)] = ref, state
        self.num_seen += 1
        self._cycle.optimizers.append(state)
        return state

    def state_of(self, optimizer: Optimizer) -> OptimizerState | None:
        """Return the state of an optimizer; ``None`` if it is not known."""
        ref, state = self._states.get(id(optimizer), (None, None))
        return state if ref is not None and ref() is optimizer else None

    def without_model(self) -> Iterator[OptimizerState]:
        """Yield the states of those whose models were not found."""
        return (state for _, state in self._states.values() if not state.models)

    def _forget_gone(self) -> None:
        """Optimizers that are no more, and whose number another one may have."""
        gone = [key for key, (ref, _) in self._states.items() if ref() is None]
        for key in gone:
            _, state = self._states[key]
            if state.has_stepped:  # In the step that is running.
                continue
            del self._states[key]
            self._cycle.optimizers.remove(state)
            for model in state.models:
                model.optimizers.remove(state)


def rates_of(optimizer: Optimizer, state: OptimizerState, model: ModelState) -> dict[str, Any]:
    """Return the learning rates of an optimizer, under the names by which a model logs them."""
    place = f".{model.optimizers.index(state)}" if len(model.optimizers) > 1 else ""
    groups = optimizer.param_groups
    rates = {}
    for number, group in enumerate(groups):
        rate, ending = group.get("lr"), f".{number}" if len(groups) > 1 else ""
        if isinstance(rate, int | float) or (isinstance(rate, torch.Tensor) and rate.numel() == 1):
            rates[f"lr{place}{ending}"] = rate
    return rates


def _params_of(optimizer: Optimizer | None) -> set[int]:
    groups = () if optimizer is None else optimizer.param_groups
    return {id(param) for group in groups for param in group["params"]}


def _has_gradients(optimizer: Optimizer | None) -> bool:
    groups = () if optimizer is None else optimizer.param_groups
    return any(param.grad is not None for group in groups for param in group["params"])
