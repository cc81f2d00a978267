"""Statistics, their merge, and the kernels that measure them.

In the order in which they are read: :mod:`~torchtap.stats.sink` is ``tt.Stats``,
:mod:`~torchtap.stats.meter` its quick way for one site, :mod:`~torchtap.stats.measure` is
``tt.measure``. They give :class:`~torchtap.stats.statistics.Statistics` with a
:class:`~torchtap.stats.histogram.Histogram`; :mod:`~torchtap.stats.named_numbers` lists the names
of all numbers, :mod:`~torchtap.stats.series` keeps them over steps, and
:mod:`~torchtap.stats.read_series` reads them from there. ``kernels/`` compute, ``catalogue/`` are
further statistics: the protocol for those of a user's own, and those of ``tt.stats``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtap.stats.catalogue.built_in import (
        Along as Along,
        Element as Element,
        Occurrence as Occurrence,
        Slices as Slices,
        Statistic as Statistic,
        along as along,
        cosine as cosine,
        effective_rank as effective_rank,
        first_nonfinite as first_nonfinite,
        top_k as top_k,
    )

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


def __getattr__(name: str) -> Any:
    """Import the further statistics with the first of them: most watches take none."""
    if name not in __all__:
        raise AttributeError(f"module 'torchtap.stats' has no attribute {name!r}")
    from torchtap.stats.catalogue import built_in

    value = globals()[name] = getattr(built_in, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
