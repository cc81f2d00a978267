"""Why a call has the rounding error that it has, from what its float64 run showed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from torchtap.diagnosis.calls.wide_arithmetic import Difficulty

_HEALTHY = 16.0
"""Errors up to so many eps are of any chain of operations, and no finding."""
_EXPLAINS = 100.0
"""How far rounding that is estimated may be from what it explains: estimates are of norms."""
_FEW_TERMS = 256
"""Sums of fewer terms explain nothing beyond :data:`_HEALTHY`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why: a word, and the figures.

    Attributes:
        word: ``cancellation``, ``accumulation``, ``range``, ``unexplained``; empty for none.
        text: the figures, or why there is no verdict.
        is_finding: whether the error is more than healthy rounding.
    """

    word: str
    text: str = ""
    is_finding: bool = False

    def __str__(self) -> str:
        parts = [part for part in (self.word, self.text) if part]
        return ": ".join(parts) or "none"


def verdict_on(
    error: float,
    dtype: torch.dtype,
    seen: Difficulty,
    others: Mapping[str, tuple[float, torch.dtype]],
) -> Verdict:
    """Say why a call has its error, or would have one in another dtype.

    Args:
        error: of the call, relative to float64.
        dtype: in which it ran.
        seen: what its float64 run showed.
        others: name of a dtype -> the error in it, and that dtype.
    """
    limits = torch.finfo(dtype)
    if not math.isfinite(error):
        if seen.largest > limits.max:
            return Verdict("range", _beyond(seen, dtype), is_finding=True)
        return Verdict("unexplained", "it is finite in float64", is_finding=True)
    if error > _HEALTHY * limits.eps:
        return _of_rounding(error, limits.eps, seen)
    for one, (other, kind) in others.items():
        if seen.largest > torch.finfo(kind).max and not other < 1:
            return Verdict("range", f"in {one} {_beyond(seen, kind)}")
        eps = torch.finfo(kind).eps
        verdict = _of_rounding(other, eps, seen) if other > _HEALTHY * eps else Verdict("")
        if verdict.word in ("cancellation", "accumulation"):
            return Verdict(verdict.word, f"in {one} {verdict.text}")
    return Verdict("")


def _of_rounding(error: float, eps: float, seen: Difficulty) -> Verdict:
    cancels = seen.cancelled * eps
    adds = math.sqrt(seen.terms) * eps if seen.terms >= _FEW_TERMS else 0.0
    if seen.cancelled >= _HEALTHY and cancels >= error / _EXPLAINS and cancels >= adds:
        text = f"{seen.operation} leaves 1 of {seen.cancelled:.2g} of what it is given"
        return Verdict("cancellation", text, is_finding=True)
    if adds * _EXPLAINS >= error:
        return Verdict("accumulation", f"sums of {seen.terms:,} terms", is_finding=True)
    return Verdict("unexplained", f"{error / eps:.2g} eps", is_finding=True)


def _beyond(seen: Difficulty, dtype: torch.dtype) -> str:
    return f"it reaches {seen.largest:.3g}, beyond {torch.finfo(dtype).max:.3g}"
