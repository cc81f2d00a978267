"""Rules on the data that enters the model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchtap.runs.rules.finding import ALARM, NOTE, Finding
from torchtap.runs.rules.rule_view import Floats, View, largest, median
from torchtap.runs.rules.squared_error import ratio_of_squares

_FEWEST = 12
"""Steps without which one of them is no outlier."""


def data_scale(
    view: View, *, high: float = 8.0, low: float = 0.02, fall: float = 0.1, targets: float = 300.0
) -> Iterator[Finding]:
    """Inputs so large or small that weights of the usual size cannot use them.

    Looks at the root mean square of each floating-point input of the model. An alarm where it
    enters a layer with weights as it is; a note where something comes before, as the features of a
    time step. Nothing where the first module called is a norm. Targets of a squared error are
    looked at where they are far beyond the outputs and the loss does not fall.

    Args:
        view: of the run.
        high: from which rms on; inputs of healthy trainings had 0.48 to 6.4.
        low: below which rms.
        fall: share of the loss that falls where all is well, though something comes before.
        targets: rms of the first error, from which on targets are of another scale.
    """
    yield from _targets(view, targets)
    called = [path for path in view.modules.leaves if view.modules.was_called(path)]
    if not called or view.modules.is_norm(called[0]):
        return
    for site in view.sites("input"):
        if site.path or "float" not in view.dtype(site):
            continue
        rms = median(view.series(site, "rms"))
        if not (rms > high or 0 < rms < low):
            continue
        mean, top = view.start(site, "mean"), view.start(site, "absmax")
        weighted = (one for one in view.modules.leaves if view.meta.num_parameters.get(one))
        is_direct = any(view.are_equal(view.site(one, "input"), site) for one in weighted)
        yield Finding(
            "data_scale",
            ALARM if is_direct or view.loss.fall < fall else NOTE,
            ".",
            view.span,
            f"the rms of the input is {rms:.3g}, its mean {mean:.3g}, its largest {top:.3g}",
            {"rms": rms, "mean": mean, "absmax": top, "is_direct": is_direct},
            "Scale the data to mean 0 and standard deviation 1 before the model.",
        )
        return


def _targets(view: View, limit: float) -> Iterator[Finding]:
    """Yield targets far beyond the outputs: the gradient of ``a sum(e^2)`` has an rms of 2 a e."""
    ratio = ratio_of_squares(view) if view.loss.fall < 0.5 else 0.0
    own = view.start(view.site("", "output"), "rms")
    away = 2 * ratio * view.start(view.site("", "grad_output"), "rms")
    if away > limit * max(own, 1.0):
        yield Finding(
            "data_scale",
            ALARM,
            ".",
            view.span,
            f"targets are {away:.3g} away from the outputs, whose rms is {own:.3g} in the first "
            f"step",
            {"error": away, "rms": own},
            "Scale the targets to mean 0 and standard deviation 1.",
        )


def bad_batch(
    view: View, *, sigma: float = 8.0, times: float = 4.0, jump: float = 10.0
) -> Iterator[Finding]:
    """One batch that is far from all others.

    An alarm where its input is, by magnitude; a note where the gradient of all parameters jumps in
    a single step while the input looks like the others.

    Args:
        view: of the run.
        sigma: how many (robust) standard deviations of the log magnitude it is away.
        times: by which factor at least.
        jump: by which factor a gradient jumps against the 16 steps before, for the note. A norm
            of healthy trainings jumped by at most 6.
    """
    for site in view.sites("input"):
        if site.path or "float" not in view.dtype(site):
            continue
        for name in ("absmax", "rms"):
            place, ratio = _outlier(view.series(site, name), sigma, times)
            if place >= 0:
                step = int(view.steps[place])
                yield Finding(
                    "bad_batch",
                    ALARM,
                    ".",
                    (step,),
                    f"the {name} of the input is {ratio:.3g} times that of the other batches",
                    {"times": ratio, "statistic": name},
                    "Look at the samples of this step (run.ids(step)); skip or clip such a batch.",
                )
                return
    yield from _jumps(view, jump)


def _outlier(values: Floats, sigma: float, times: float) -> tuple[int, float]:
    """Return the place of the only value far from the others, and its ratio; -1 for none."""
    there = np.isfinite(values) & (values > 0)
    if there.sum() < _FEWEST:
        return -1, 1.0
    logs = np.log(values[there])
    away = logs - median(logs)
    spread = max(1.4826 * median(abs(away)), 0.1)
    far = abs(away) > max(sigma * spread, np.log(times))
    if not 0 < far.sum() <= max(1, len(far) // 20):
        return -1, 1.0
    at = int(np.argmax(abs(away)))
    return int(np.flatnonzero(there)[at]), float(np.exp(away[at]))


def _jumps(view: View, jump: float) -> Iterator[Finding]:
    norms = view.norm("param_grad")
    for place in range(8, len(norms)):
        before = norms[max(0, place - 16) : place]
        usual, top = median(before), largest(before)
        if usual > 0 and norms[place] > jump * max(usual, top / 2):
            step = int(view.steps[place])
            ratio = float(norms[place] / usual)
            yield Finding(
                "bad_batch",
                NOTE,
                ".",
                (step,),
                f"the norm of all gradients is {ratio:.3g} times that of the steps before",
                {"times": ratio},
                "Look at the samples of this step; clip the norm of the gradient.",
            )
            return
