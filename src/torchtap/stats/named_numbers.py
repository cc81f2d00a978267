"""The numbers that a tensor is described by, under the names they have everywhere.

``run.over_steps``, ``run.table``, ``to_frame`` and ``torchtap stats`` know the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.errors import InputError, SiteError
from torchtap.stats.catalogue.results import Extra
from torchtap.stats.statistics import Statistics


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a :class:`Statistics`.

    Attributes:
        of: reads it.
        meaning: what it is, in a line.
        needs_histogram: whether it is read off the histogram; NaN without one.
    """

    of: Callable[[Statistics], float]
    meaning: str
    needs_histogram: bool = False


def _attribute(stats: Statistics, name: str) -> float:
    value: float = getattr(stats, name)
    return value


def _quantile(stats: Statistics, q: float) -> float:
    return math.nan if stats.histogram is None else stats.quantile(q)


def _beyond(stats: Statistics, side: str, dtype: str) -> float:
    share_of: Callable[[str], float] = getattr(stats, side)
    return math.nan if stats.histogram is None else share_of(dtype)


_OF_FINITE = "of the finite elements"
_ATTRIBUTES = {
    "num_tensors": "tensors that were measured: calls, micro-batches, steps",
    "nbytes": "bytes of them together",
    "numel": "elements",
    "num_finite": "elements that are neither NaN nor infinite",
    "zeros": "elements equal to zero",
    "subnormal": "elements too small for the dtype's full precision",
    "nan": "NaN elements",
    "posinf": "elements equal to +Inf",
    "neginf": "elements equal to -Inf",
    "nonfinite": "NaN and infinite elements together",
    "mean": f"mean {_OF_FINITE}",
    "std": f"population standard deviation {_OF_FINITE}",
    "rms": f"root of the mean square {_OF_FINITE}",
    "l1": f"sum of the magnitudes {_OF_FINITE}",
    "l2": f"Euclidean norm {_OF_FINITE}",
    "min": "smallest finite element",
    "max": "largest finite element",
    "absmax": "largest finite magnitude",
    "update_ratio": "l2 of an update over weight_l2",
    "weight_l2": "l2 of the parameter of an update, when the step began",
}
_QUANTILES = {"p1": 0.01, "p25": 0.25, "median": 0.5, "p75": 0.75, "p99": 0.99}
_FORMATS = ("fp16", "bf16", "e4m3", "e5m2")
_BEYOND = {
    "underflow": f"share {_OF_FINITE} that are not zero and round to zero in",
    "overflow": f"share {_OF_FINITE} that lie beyond the range of",
}

NAMES: Mapping[str, Number] = {
    **{name: Number(partial(_attribute, name=name), said) for name, said in _ATTRIBUTES.items()},
    **{
        name: Number(partial(_quantile, q=q), f"quantile {q:g} {_OF_FINITE}", needs_histogram=True)
        for name, q in _QUANTILES.items()
    },
    **{
        f"{short}_{side}": Number(
            partial(_beyond, side=side, dtype=short), f"{said} {short}", needs_histogram=True
        )
        for short in _FORMATS
        for side, said in _BEYOND.items()
    },
}
"""Name -> number. Counts are whole numbers, shares lie between 0 and 1."""


def value_of(stats: Statistics, name: str) -> Any:
    """Return a number, the result of a further statistic, or a part: ``units.mean``, by its name.

    Raises:
        SiteError: there is nothing of that name.
        RunError: a further statistic is not available; the message says why.
    """
    if name in NAMES:
        return NAMES[name].of(stats)
    further = further_of(name, stats.extra)
    if further == name:
        return stats.extra[name]
    part = name[len(further) + 1 :]
    result = stats.extra[further]
    parts = _parts(result)
    if part not in parts:
        raise SiteError(f"{further!r} has no {part!r}{did_you_mean(part, parts)}")
    return result[part] if isinstance(result, Mapping) else getattr(result, part)


def number_of(stats: Statistics, name: str) -> float:
    """Return the value of a name as a number; NaN where there is none here.

    Raises:
        InputError: it is no number.
    """
    return as_number(name, value_of(stats, name) if is_there(stats, name) else None)


def as_number(name: str, value: Any) -> float:
    """Return a value of that name as a number; NaN for ``None``.

    Raises:
        InputError: it is no number.
    """
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError):
        raise InputError(
            f"{name!r} is no number but a {type(value).__name__}, so nothing can be sorted or "
            f"drawn by it. Take a part of it that is one."
        ) from None


def is_there(stats: Statistics, name: str) -> bool:
    """Return whether a name is there: a number always, a further statistic where it was kept."""
    there = stats.extra.keys() - missing_of(stats).keys()
    return name in NAMES or name in there or name.rpartition(".")[0] in there


def further_of(name: str, known: Iterable[str]) -> str:
    """Return the further statistic that a name is of, which it is itself or up to its last dot.

    Raises:
        SiteError: there is none of that name.
    """
    known = list(known)
    for further in (name, name.rpartition(".")[0]):
        if further in known:
            return further
    raise SiteError(f"There is no statistic {name!r}{did_you_mean(name, [*NAMES, *known])}")


def missing_of(stats: Statistics) -> Mapping[str, str]:
    """Return name -> why it is not available, of further statistics that were asked for."""
    return stats.extra.missing if isinstance(stats.extra, Extra) else {}


def _parts(result: Any) -> list[str]:
    if isinstance(result, Mapping):
        return [key for key in result if isinstance(key, str)]
    return [
        part
        for part in dir(result)
        if not part.startswith("_") and not callable(getattr(result, part))
    ]
