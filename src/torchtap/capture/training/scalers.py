"""Notices that a ``GradScaler`` was updated: where it skips a step, no optimizer is called."""

from __future__ import annotations

import gc
import weakref

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from torchtap.core.torch_private import has_scaled, scale_version


class Scalers:
    """The scalers of this process, looked for once: when the training has begun.

    An update writes into the scale in place, so the scale's version tells of it, and nothing has to
    be read from the device.
    """

    def __init__(self) -> None:
        self._found: list[weakref.ref[GradScaler]] | None = None
        self._versions: weakref.WeakKeyDictionary[GradScaler, int] = weakref.WeakKeyDictionary()
        self._earlier = self._versions  # Of scalers that were used before the training.
        self._stepping: weakref.WeakSet[GradScaler] = weakref.WeakSet()

    def begin(self) -> None:
        """Note the updates before a training: scalers of an earlier one may still be there.

        Those of this training may be made later, so they are looked for again.
        """
        self._versions = _versions(_scalers_of_process())
        self._earlier = weakref.WeakKeyDictionary(
            {one: version for one, version in self._versions.items() if has_scaled(one)}
        )

    def note(self) -> None:
        """Updates so far are known of."""
        if self._found is None:
            self._look()
        self._versions = _versions(self.alive())

    @property
    def are_known(self) -> bool:
        """Return whether the scalers were looked for."""
        return self._found is not None

    @property
    def are_stepping(self) -> bool:
        """Return whether any steps the optimizers that :meth:`learn` was told of."""
        return bool(self._stepping)

    def were_updated(self) -> bool:
        """Return whether any was updated since the last time."""
        return bool(self.updated())

    def learn(self, optimizer: Optimizer) -> None:
        """Learn which scalers step an optimizer; called as its step begins, with which they do."""
        if self._found is None:
            self._look()
        for scaler in self.alive():
            states = getattr(scaler, "_per_optimizer_states", {})
            # GradScaler.step() fills it before it calls the optimizer (torch/amp/grad_scaler.py).
            if id(optimizer) in states and states[id(optimizer)]["found_inf_per_device"]:
                self._stepping.add(scaler)

    def updated(self) -> list[GradScaler]:
        """Return those updated since the last time: of those that step the optimizers, if known."""
        if self._found is None:
            self._look()
        before, self._versions = self._versions, _versions(self.alive())
        # GradScaler.update() writes the scale in place, which raises its version.
        return [one for one in self.own() if scale_version(one) > before.get(one, 0)]

    def own(self) -> list[GradScaler]:
        """Return those that step the optimizers, if that is known, else all."""
        return [one for one in self.alive() if one in self._stepping or not self._stepping]

    def of_training(self) -> list[GradScaler]:
        """Return those that were first used or updated since :meth:`begin`."""
        return [one for one in self.alive() if has_scaled(one) and self._is_of_training(one)]

    def _is_of_training(self, scaler: GradScaler) -> bool:
        return scale_version(scaler) != self._earlier.get(scaler, -1)

    @staticmethod
    def is_counting_anew(scaler: GradScaler) -> bool:
        """Return whether the last update changed the scale; reads a number of the device."""
        return scaler.state_dict().get("_growth_tracker") == 0

    def have_skipped(self) -> bool:
        """Return whether any found gradients that are not finite since the last :meth:`note`.

        Reads a number of the device, so it is for steps that no optimizer made.
        """
        if self._found is None:
            self._look()
        return any(map(self._has_skipped, self.alive()))

    def _has_skipped(self, scaler: GradScaler) -> bool:
        states = getattr(scaler, "_per_optimizer_states", {}).values()
        stepped = (state for state in states if state["stage"].name == "STEPPED")
        if any(bool(found) for one in stepped for found in one["found_inf_per_device"].values()):
            return True  # And was not updated since.
        if scale_version(scaler) <= self._versions.get(scaler, 0):
            return False
        return self.is_counting_anew(scaler)  # It counts the steps in a row that were made.

    def _look(self) -> None:
        self._found = [weakref.ref(one) for one in _scalers_of_process()]

    def alive(self) -> list[GradScaler]:
        """Return those that were found and are still there."""
        return [scaler for ref in self._found or () if (scaler := ref()) is not None]


def _scalers_of_process() -> list[GradScaler]:
    return [one for one in gc.get_objects() if issubclass(type(one), GradScaler)]


def _versions(scalers: list[GradScaler]) -> weakref.WeakKeyDictionary[GradScaler, int]:
    return weakref.WeakKeyDictionary({scaler: scale_version(scaler) for scaler in scalers})
