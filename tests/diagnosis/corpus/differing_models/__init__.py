"""Pairs of models with one planted difference."""

from __future__ import annotations

from differing_models import decoder, pictures
from differing_models.situation import Situation, Two, wrong

SITUATIONS: list[Situation] = [*decoder.SITUATIONS, *pictures.SITUATIONS]

__all__ = ["SITUATIONS", "Situation", "Two", "wrong"]
