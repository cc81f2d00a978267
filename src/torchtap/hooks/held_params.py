"""Parameters that are held still while an optimizer makes its step."""

from __future__ import annotations

import weakref
from typing import Protocol

from torch import Tensor

from torchtap.core.shared_state import members


class Holder(Protocol):
    """Interface of what holds parameters: an open ``tt.freeze``."""

    def holds(self, param: Tensor) -> bool:
        """Return whether it holds a parameter."""


holders: weakref.WeakSet[Holder] = weakref.WeakSet()
"""Freezes that are open."""


def is_held(param: Tensor) -> bool:
    """Return whether anything holds a parameter still."""
    return any(holder.holds(param) for holder in members(holders))
