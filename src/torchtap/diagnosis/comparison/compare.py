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
    r"""Say in what two runs, or two modules, differ: which call departs first, and why.

    **Two runs** (in memory, or paths of saved ones; of other processes, commits, dtypes or names)
    are compared step by step, up to the first step that differs. Values that were measured and not
    kept are compared by their statistics, which give a lower bound of the distance.

    **Two modules** are both called with ``inputs``, from the same random state, forward and, where
    grad mode is on and an output requires grad, backward from a fixed loss over all outputs that
    both have. What each call *adds* is found by giving the candidate's module the very inputs that
    the reference was given; the cause is found by experiment: modes, buffers, weights, random state
    and dtype of the reference are lent to it, and what makes the difference vanish is the cause.
    Parameters, their ``.grad``, buffers, modes and random states are put back to the bit, also
    after an exception. Compiled modules run uncompiled; ``notes`` says how far they are as
    compiled.

    Calls are aligned by path and number, then by ``map``, and what is left by the order of the
    calls, the parameters, the sizes of outputs, the class and the last name. Rounding is allowed
    ``4 eps + 4 sqrt(K) min(eps, 2^-23)`` (``eps`` of the coarsest dtype, ``K`` terms of the longest
    sum), ``sqrt(n)`` times as much after ``n`` calls, and 4 times the distance of two runs of the
    reference. NaN at the same place in both is equal.

    Args:
        a: the reference: a run, the path of one, or a module.
        b: the candidate, likewise.
        *inputs: what both modules are called with. Floating-point inputs are converted to the dtype
            of a module that cannot be called with them, which ``notes`` says.
        map: paths of ``a`` -> paths of ``b``, as a dict or pairs. A path stands for all below it; a
            name that is no path stands for that part of any path; regular expressions match whole
            parts, as ``{r"h\.(\d+)": r"layers.\1"}``.
        tolerance: relative distance that is allowed everywhere, in place of what rounding explains;
            0 for equality to the bit.
        **kwargs: keyword arguments of both modules.

    Returns:
        ``same`` (also ``bool()``), ``rows``, ``first``, ``only_a``, ``only_b`` and ``notes``.

    Raises:
        CompareError: both have nothing in common, ``map`` fits nothing, or one is a run and the
            other a module.
        Exception: what a module raises that is called with the inputs.

    Example:
        >>> import copy, torch, torchtap as tt
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
        >>> port = copy.deepcopy(model)
        >>> port[1].approximate = "tanh"
        >>> found = tt.compare(model, port, torch.randn(3, 4))
        >>> found.same, found.first.path, found.first.cause
        (False, '1', 'computation')
        >>> bool(tt.compare(model, model, torch.randn(3, 4)))
        True
    """
    names = renaming(map)
    is_number = isinstance(tolerance, int | float)
    if tolerance is not None and not (is_number and 0 <= tolerance < math.inf):
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
    return compare_runs(runs[0], runs[1], names, tolerance=tolerance, names=_names(a, b))


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
