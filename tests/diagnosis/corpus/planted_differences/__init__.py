"""Pairs of models with one planted difference."""

from __future__ import annotations

from planted_differences import decoder, pictures
from planted_differences.situation import Situation, Two, wrong

SITUATIONS: list[Situation] = [*decoder.SITUATIONS, *pictures.SITUATIONS]

__all__ = ["SITUATIONS", "Situation", "Two", "wrong"]
