"""A squared error, told by its gradient: climbed, or of each output with all targets."""

from __future__ import annotations

import numpy as np

from torchtap.runs.rules.rule_view import Floats, View

_FEWEST = 10


def ratio_of_squares(view: View, *, tolerance: float = 1e-3) -> float:
    """Return the logged loss over the squared norm of its gradient, if it is a squared error.

    The gradient of ``a sum((y - t)^2)`` is ``2 a (y - t)``, so the ratio is ``1 / (4 a)`` in every
    step, whatever is learnt. It is 0 for another loss, and negative where minus the error was
    logged.

    Args:
        view: of the run.
        tolerance: by which the ratio may differ from step to step, relative.
    """
    loss, norm = _logged(view), view.series(view.site("", "grad_output"), "l2")
    with np.errstate(all="ignore"):
        ratio = loss / norm**2
    ratio = ratio[np.isfinite(ratio) & (norm > 0)]
    if len(ratio) < _FEWEST or not np.ptp(ratio) < tolerance * abs(ratio.mean()):
        return 0.0
    return float(ratio.mean())


def share_of_all_pairs(view: View, *, tolerance: float = 1e-3) -> float:
    """Return the share of a squared error that no output changes; 0 where there is none.

    Where each output ``y`` is compared with each target (``[B, 1]`` with ``[B]``), the gradient is
    ``2 (y - mean(t)) / B``. Its standard deviation is that of the outputs times ``2 / B``, whatever
    the targets, and the loss is that of the mean target plus the variance of the targets.

    Args:
        view: of the run.
        tolerance: of the standard deviations, relative.
    """
    output, gradient = view.site("", "output"), view.site("", "grad_output")
    size = view.series(gradient, "numel")
    spread, pull = view.series(output, "std"), view.series(gradient, "std") * size / 2
    loss, own = _logged(view), size * view.series(gradient, "l2") ** 2 / 4
    there = np.isfinite(spread * pull * loss) & (spread > 0)
    if there.sum() < _FEWEST or not (abs(pull - spread) < tolerance * spread)[there].all():
        return 0.0
    late = np.flatnonzero(there)[-_FEWEST:]
    return float(np.median(1 - own[late] / loss[late]))


def is_of_all_pairs(view: View) -> bool:
    """Return whether a loss makes ``[B, 1]`` to ``[B, B]``, to compare it with ``[B]``.

    Its operations tell: an output of one column is expanded by the error that takes it, or a mean
    is one over ``B^2`` numbers, of which each was computed from one output.
    """
    shape = view.shape(view.site("", "output"))
    if len(shape) != 2 or shape[1] != 1 or shape[0] < 3:
        return False
    size = shape[0]
    for graph in view.judged.graphs:
        for operation in graph:
            if operation.name == "Expand" and operation.settings.get("self_sym_sizes") == [*shape]:
                return True
        is_chain = all(len(operation.inputs) < 2 for operation in graph)
        means = [one.settings.get("self_sym_numel") for one in graph if one.name == "Mean"]
        if is_chain and size**2 in means:
            return True
    return False


def _logged(view: View) -> Floats:
    """Return the logged loss by steps of the run, NaN where it was not logged."""
    found = np.full(len(view.steps), np.nan)
    if view.loss.is_logged:
        places = {int(step): place for place, step in enumerate(view.steps)}
        for step, value in zip(view.loss.steps, view.loss.values, strict=True):
            if step in places:
                found[places[step]] = value
    return found
