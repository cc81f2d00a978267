"""Pairs of models with one planted difference."""

from __future__ import annotations

from differing_models import pictures, ports
from differing_models.situation import Situation, Two, wrong

SITUATIONS: list[Situation] = [*ports.SITUATIONS, *pictures.SITUATIONS]

__all__ = ["SITUATIONS", "Situation", "Two", "wrong"]
