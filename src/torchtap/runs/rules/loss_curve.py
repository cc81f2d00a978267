"""The loss of a run as rules read it, and what stands in for a loss that was not logged."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torchtap.runs.rules.rule_view import Floats, View

_FEWEST = 10
"""Numbers without which nothing is said of a trend."""
_SCALED = 1e4


class LossCurve:
    """The loss over the steps in which it was logged.

    Without a logged loss, the number from which the backwards began stands in, where a watch saw
    it and all began from one kind of loss. Else a cross-entropy is read off the gradient of its
    logits: the magnitudes of ``(softmax - one_hot) / rows`` sum to ``2 (1 - p)``, with ``p`` the
    mean probability of the true class, and ``-log p`` stands in.

    Args:
        view: of the run.
    """

    def __init__(self, view: View) -> None:
        self._view = view

    @cached_property
    def num_classes(self) -> int:
        """The number of classes of a softmax cross-entropy of the model's output; 0 for another.

        Its gradient sums to 0 over the classes, and so in all, and its magnitudes to 2 at most, or
        to 2 for each row where the loss is their sum.
        """
        view = self._view
        output, gradient = view.site("", "output"), view.site("", "grad_output")
        shape = view.shape(output)
        rms, mean = view.start(gradient, "rms"), view.start(gradient, "mean")
        if len(shape) < 2 or not rms > 0:
            return 0
        classes = shape[-1] if len(shape) < 4 else shape[1]
        rounding = 1e-2 if view.dtype(gradient) in ("float16", "bfloat16") else 1e-4
        is_balanced = abs(mean) < rounding * rms
        l1, top = view.start(gradient, "l1") / self.num_losses, view.start(gradient, "absmax")
        is_sum = 0.3 < top <= 1.001 and l1 <= 2.001 * view.start(gradient, "numel") / classes
        return classes if classes > 1 and is_balanced and (l1 <= 2.001 or is_sum) else 0

    @cached_property
    def name(self) -> str:
        """The name under which it was logged; empty where it was not."""
        names = self._view.run.scalar_names
        exact = [one for one in names if one == "loss"]
        return next(iter([*exact, *(one for one in names if _is_loss(one))]), "")

    @property
    def is_logged(self) -> bool:
        """Return whether the loss itself is known: logged, or seen where a backward began."""
        return bool(self.name) or self.is_seen

    @cached_property
    def is_seen(self) -> bool:
        """Return whether it was not logged, and one loss was seen where backwards began."""
        judged = self._view.judged
        if self.name or not judged.has_one or not len(judged.values[0]):
            return False
        # One that a scaler multiplied changes with its scale, which begins at 65536.
        return bool(abs(judged.values[1][0]) < _SCALED)

    @cached_property
    def _logged(self) -> tuple[list[int], Floats]:
        since = self._view.since
        if self.is_seen:
            return self._view.judged.values
        if not self.name:
            values = self._stand_in()
            there = ~np.isnan(values)
            return self._view.steps[there].tolist(), values[there]
        steps, logged = self._view.run.scalars(self.name)
        pairs = [(step, v) for step, v in zip(steps, logged, strict=True) if step >= (since or 0)]
        return [step for step, _ in pairs], np.array([v for _, v in pairs], dtype=np.float64)

    def _stand_in(self) -> Floats:
        view = self._view
        if not self.num_classes:
            return np.full(len(view.steps), math.nan)
        with np.errstate(all="ignore"):
            return -np.log(np.maximum(1 - self.wrong_share(self.num_classes), 1e-9))

    def wrong_share(self, classes: int) -> Floats:
        """Return the mean of ``1 - p`` over the rows, as the gradient of a cross-entropy has it."""
        view = self._view
        gradient = view.site("", "grad_output")
        l1 = view.series(gradient, "l1") / self.num_losses
        rows = view.series(gradient, "numel") / classes / self.num_losses
        found: Floats = np.where(l1 > 2.0001, l1 / rows, l1) / 2
        return found

    @property
    def num_losses(self) -> int:
        """How many losses a step has: one, or one of each rank of a merged run."""
        meta = self._view.meta
        return max(meta.world_size // meta.num_stages, 1) if meta.rank is None else 1

    @property
    def steps(self) -> list[int]:
        """The steps in which it is known, ascending."""
        return self._logged[0]

    @property
    def values(self) -> Floats:
        """The loss in these steps."""
        return self._logged[1]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_known(self) -> bool:
        """Return whether there are enough finite numbers for a trend."""
        return len(self.values) >= _FEWEST and bool(np.isfinite(self.values).all())

    @cached_property
    def start(self) -> float:
        """The mean of the first tenth, of three numbers at least; NaN where it is not known."""
        if not self.is_known:
            return math.nan
        return float(self.values[: max(3, len(self.values) // 10)].mean())

    @cached_property
    def end(self) -> float:
        """The mean of the last fifth; NaN where it is not known."""
        if not self.is_known:
            return math.nan
        return float(self.values[-2 * max(3, len(self.values) // 10) :].mean())

    @property
    def fall(self) -> float:
        """The share of the loss that is gone at the end, negative where it rose; NaN if unknown.

        A loss that starts within its noise of 0, as that of a policy, has no share: NaN.
        """
        if self.is_around_0:
            return math.nan
        return (self.start - self.end) / (abs(self.start) + 1e-30)

    @property
    def is_around_0(self) -> bool:
        """Return whether it is of both signs, and starts nearer to 0 than it goes up and down.

        That of a policy is, whatever its signs.
        """
        if self._view.judged.is_of_policy:
            return True
        has_both = self.is_known and bool(self.values.min() < 0 < self.values.max())
        return has_both and abs(self.start) < self.noise

    @property
    def is_within_noise(self) -> bool:
        """Return whether start and end are as close as the noise from step to step explains."""
        tenth = max(3, len(self.values) // 10)
        error = self.noise * math.sqrt(1 / tenth + 1 / (2 * tenth))
        return self.is_known and abs(self.start - self.end) < 2 * error

    @property
    def noise(self) -> float:
        """The standard deviation from step to step, of independent noise."""
        return float(np.std(np.diff(self.values)) / math.sqrt(2)) if len(self) > 2 else math.nan


def _is_loss(name: str) -> bool:
    lowered = name.lower()
    return "loss" in lowered and not any(word in lowered for word in ("val", "eval", "test"))
