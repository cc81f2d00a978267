"""Statistics, their merge, and the kernels that measure them.

In the order in which they are read: :mod:`~torchtap.stats.sink` is ``tt.Stats``,
:mod:`~torchtap.stats.meter` its quick way for one site, :mod:`~torchtap.stats.measure` is
``tt.measure``. They give :class:`~torchtap.stats.statistics.Statistics` with a
:class:`~torchtap.stats.histogram.Histogram`; :mod:`~torchtap.stats.named_numbers` lists the names
of all numbers, :mod:`~torchtap.stats.series` keeps them over steps, and
:mod:`~torchtap.stats.read_series` reads them from there. ``kernels/`` compute, ``catalogue/`` are
further statistics: the protocol for those of a user's own, and those of ``tt.stats``.
"""

from torchtap.stats.catalogue.cosine import cosine as cosine
from torchtap.stats.catalogue.effective_rank import effective_rank as effective_rank
from torchtap.stats.catalogue.first_nonfinite import (
    Occurrence as Occurrence,
    first_nonfinite as first_nonfinite,
)
from torchtap.stats.catalogue.protocol import Statistic as Statistic
from torchtap.stats.catalogue.slices import Along as Along, Slices as Slices, along as along
from torchtap.stats.catalogue.top_k import Element as Element, top_k as top_k

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
