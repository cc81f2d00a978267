"""Settings in which modules of two runs differ: numbers, truth values, texts, modes."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from torchtap.runs.meta import Meta

_MOST = 3
_OF_MODE = ("Drop", "Norm", "RReLU", "MultiheadAttention", "LSTM", "GRU", "RNN")
"""Parts of names of PyTorch's classes that compute something else in training mode."""


def other_settings(metas: tuple[Meta, Meta], path: str, other: str) -> str:
    """Say which settings of two modules differ, as ``eps is 1e-05 in the reference and ...``.

    Args:
        metas: of both runs.
        path: of the module in the reference, empty for the model.
        other: in the candidate.
    """
    return differing(metas[0].settings.get(path, {}), metas[1].settings.get(other, {}))


def differing(
    one: Mapping[str, Any], two: Mapping[str, Any], *, leave_out: Container[str] = ()
) -> str:
    """Say which of the values that both have differ."""
    known = [name for name in one if name in two and name not in leave_out]
    names = [name for name in known if not _equal(one[name], two[name])]
    said = [
        f"{name} is {one[name]!r} in the reference and {two[name]!r} in the candidate"
        for name in names[:_MOST]
    ]
    more = f", and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return "; ".join(said) + more


def other_mode(metas: tuple[Meta, Meta], path: str, other: str, type_name: str) -> str:
    """Say that two modules were in other modes, where that makes them compute something else."""
    one, two = metas[0].modes.get(path), metas[1].modes.get(other)
    if one is None or two is None or one == two:
        return ""
    if not any(part in type_name for part in _OF_MODE):
        return ""
    names = ("training mode" if mode else "eval mode" for mode in (one, two))
    return f"{next(names)} in the reference, and {next(names)} in the candidate"


def _equal(one: Any, two: Any) -> bool:
    return bool(one == two or (one != one and two != two))
