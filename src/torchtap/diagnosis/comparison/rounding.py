"""The distance of two values that rounding explains."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

import torch

_SINGLE = 2.0**-23
_DEFAULT_TERMS = 16
"""The number of terms for a call whose parameters are not known."""


@cache
def epsilon(dtype: str) -> float:
    """Spacing of the numbers of a dtype at 1; 0 of whole numbers, which do not round.

    Example:
        >>> epsilon("bfloat16"), epsilon("int64")
        (0.0078125, 0.0)
    """
    torch_dtype = getattr(torch, dtype, None)
    if not isinstance(torch_dtype, torch.dtype) or not (
        torch_dtype.is_floating_point or torch_dtype.is_complex
    ):
        return 0.0
    return float(torch.finfo(torch_dtype).eps)


def coarsest(dtypes: Iterable[str]) -> str:
    """Return the dtype of the fewest digits; empty where nothing rounds."""
    return max((dtype for dtype in dtypes if epsilon(dtype)), key=epsilon, default="")


def rounding(dtypes: Iterable[str], terms: int, *, num_calls: int = 1) -> float:
    """Relative distance that rounding alone may make.

    ``4 eps + 4 sqrt(K) min(eps, 2^-23)``: of the values themselves in the coarsest dtype, and of
    sums of ``K`` terms, which are added up in float32 at least. Errors of calls that follow each
    other are independent, so those of ``n`` calls are ``sqrt(n)`` times as large.

    Args:
        dtypes: of inputs, outputs and parameters on both sides.
        terms: of the longest sum, ``K``; 0 where it is not known.
        num_calls: of modules, one after the other, that the value went through.
    """
    eps = epsilon(coarsest(dtypes) or "int64")
    own = 4 * eps + 4 * math.sqrt(terms or _DEFAULT_TERMS) * min(eps, _SINGLE)
    return own * math.sqrt(max(num_calls, 1))


def kinks(dtypes: Iterable[str], num_calls: int) -> float:
    """Relative distance that gradients may have where forwards agree within rounding only.

    Where a value is nearly zero before a ReLU, or nearly the largest before a maximum, rounding
    decides which way the gradient goes. That happens to a share of about ``eps`` of the values, and
    moves the norm of a gradient by about the root of it; in ``n`` calls by ``2 sqrt(n eps)``.
    """
    return 2 * math.sqrt(num_calls * epsilon(coarsest(dtypes) or "int64"))
