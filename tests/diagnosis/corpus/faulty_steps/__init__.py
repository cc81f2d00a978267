"""Training steps in which something turns NaN or Inf on purpose, and where."""

from __future__ import annotations

from faulty_steps import backward, forward, outside, state
from faulty_steps.planted import Planted, Training, wrong

FAULTS: list[Planted] = [*forward.FAULTS, *backward.FAULTS, *state.FAULTS, *outside.FAULTS]
FINE: list[Planted] = [*forward.FINE, *backward.FINE]

__all__ = ["FAULTS", "FINE", "Planted", "Training", "wrong"]
