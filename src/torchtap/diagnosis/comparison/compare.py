"""``tt.compare``: in what two runs or two modules differ."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch import nn

from torchtap.core.errors import CompareError
from torchtap.core.tensors import kind_of
from torchtap.diagnosis.comparison.renaming import Map, renaming
from torchtap.diagnosis.comparison.result import Comparison
from torchtap.diagnosis.comparison.two_runs import compare_runs
from torchtap.runs.open_run import open_run
from torchtap.runs.run import Run

Compared = Run | nn.Module | str | Path


def compare(
    a: Compared,
    b: Compared,
    *inputs: Any,
    map: Map = None,
    tolerance: float | None = None,
    **kwargs: Any,
) -> Comparison:
    """Say in what two runs, or two modules, differ: which call departs first, and why.

    TODO
    """
    names = renaming(map)
    if tolerance is not None and not (tolerance >= 0 and math.isfinite(tolerance)):
        raise CompareError(f"tolerance is {tolerance!r}; expected a number from 0.")
    if isinstance(a, nn.Module) and isinstance(b, nn.Module):
        from torchtap.diagnosis.comparison.two_modules import compare_modules

        return compare_modules(a, b, inputs, kwargs, names, tolerance=tolerance)
    runs = [_run(one, name) for one, name in ((a, "a"), (b, "b"))]
    if inputs or kwargs:
        raise CompareError(
            "Two runs are compared as they were recorded, and take no inputs; inputs are for two "
            "modules."
        )
    return compare_runs(
        runs[0], runs[1], names, tolerance=tolerance, names=_names(a, b)
    )


def _run(given: Any, name: str) -> Run:
    if isinstance(given, Run):
        return given
    if isinstance(given, str | Path):
        return open_run(given)
    raise CompareError(
        f"{name} is {kind_of(given)}; expected two runs (w.run of a watch, or the path of a saved "
        f"one), or two modules and what both are called with."
    )


def _names(a: Any, b: Any) -> tuple[str, str]:
    names = [str(one) if isinstance(one, str | Path) else "" for one in (a, b)]
    if not all(names) or names[0] == names[1]:
        return "the reference", "the candidate"
    return names[0], names[1]
