"""What is measured: each statistic, its merge, and the kernels.

In the order in which they are read: :mod:`~torchtap.stats.sink` is ``tt.Stats``,
:mod:`~torchtap.stats.meter` its quick way for one site, :mod:`~torchtap.stats.measure` is
``tt.measure``. What they give is :class:`~torchtap.stats.statistics.Statistics` with a
:class:`~torchtap.stats.histogram.Histogram`; :mod:`~torchtap.stats.names` lists the names of all
numbers, :mod:`~torchtap.stats.series` keeps them over steps, and
:mod:`~torchtap.stats.reading` reads them from there. ``kernels/`` compute, ``custom/`` are
further statistics: the protocol for those of a user's own, and those of ``tt.stats``.
"""

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
