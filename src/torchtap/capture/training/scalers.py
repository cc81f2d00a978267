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

    def were_updated(self) -> bool:
        """Whether any was updated since the last time."""
        if self._found is None:
            self._look()
        before, self._versions = self._versions, self._now()
        return any(version > before.get(key, 0) for key, version in self._versions.items())

    def _look(self) -> None:
        scalers = (one for one in gc.get_objects() if issubclass(type(one), GradScaler))
        self._found = [weakref.ref(one) for one in scalers]

    def _now(self) -> dict[int, int]:
        alive = [scaler for ref in self._found or () if (scaler := ref()) is not None]
        return {id(scaler): scale_version(scaler) for scaler in alive}
