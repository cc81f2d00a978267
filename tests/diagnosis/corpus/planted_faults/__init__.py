"""Training steps in which something turns NaN or Inf on purpose, and where."""

from __future__ import annotations

from planted_faults import backward, forward, outside, state
from planted_faults.planted import Planted, Training, wrong

FAULTS: list[Planted] = [*forward.FAULTS, *backward.FAULTS, *state.FAULTS, *outside.FAULTS]
FINE: list[Planted] = [*forward.FINE, *backward.FINE]

__all__ = ["FAULTS", "FINE", "Planted", "Training", "wrong"]
