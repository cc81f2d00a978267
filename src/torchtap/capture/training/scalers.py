"""Notices that a ``GradScaler`` was updated: where it skips a step, no optimizer is called."""

from __future__ import annotations

import gc
import weakref

from torch.amp.grad_scaler import GradScaler

from torchtap.core.torch_private import scale_version


class Scalers:
    """The scalers of this process, looked for once: when the training has begun.

    An update writes into the scale in place, so the scale's version tells of it, and nothing has to
    be read from the device.
    """

    def __init__(self) -> None:
        self._found: list[weakref.ref[GradScaler]] | None = None
        self._versions: dict[int, int] = {}

    def note(self) -> None:
        """Updates so far are known of."""
        if self._found is None:
            self._look()
        self._versions = self._now()

    @property
    def are_known(self) -> bool:
        """Return whether the scalers were looked for."""
        return self._found is not None

    def were_updated(self) -> bool:
        """Return whether any was updated since the last time."""
        if self._found is None:
            self._look()
        before, self._versions = self._versions, self._now()
        return any(version > before.get(key, 0) for key, version in self._versions.items())

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
        if scale_version(scaler) <= self._versions.get(id(scaler), 0):
            return False
        return scaler.state_dict().get("_growth_tracker") == 0  # Steps in a row that were made.

    def _look(self) -> None:
        scalers = (one for one in gc.get_objects() if issubclass(type(one), GradScaler))
        self._found = [weakref.ref(one) for one in scalers]

    def _now(self) -> dict[int, int]:
        return {id(scaler): scale_version(scaler) for scaler in self.alive()}

    def alive(self) -> list[GradScaler]:
        return [scaler for ref in self._found or () if (scaler := ref()) is not None]
