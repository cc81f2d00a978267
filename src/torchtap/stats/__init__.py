"""What is measured: each statistic, its merge, and the kernels."""

from torchtap.stats.custom.library import (
    Element as Element,
    cosine as cosine,
    effective_rank as effective_rank,
    top_k as top_k,
)
from torchtap.stats.custom.nonfinite import (
    Occurrence as Occurrence,
    first_nonfinite as first_nonfinite,
)
from torchtap.stats.custom.protocol import Statistic as Statistic
from torchtap.stats.custom.slices import Along as Along, Slices as Slices, along as along

__all__ = [
    "Along",
    "Element",
    "Occurrence",
    "Slices",
    "Statistic",
    "along",
    "cosine",
    "effective_rank",
    "first_nonfinite",
    "top_k",
]
