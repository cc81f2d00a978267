"""The steps that are not finite: investigated, recorded, and acted on as it was asked."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Literal

from torch import nn

from torchtap.capture.watch_handle import note_of_step, watches_of
from torchtap.core.errors import NonFiniteError
from torchtap.diagnosis.origins.guarded_steps import GuardedStep
from torchtap.diagnosis.origins.investigate import Evidence, investigate, when_clean
from torchtap.diagnosis.origins.kept_calls import Kept
from torchtap.diagnosis.origins.origin import Origin
from torchtap.diagnosis.origins.recorder import Recorder
from torchtap.diagnosis.origins.verdict_of_ranks import Ranks

On = Literal["raise", "warn", "skip"] | Callable[[Origin], object]


class Hits:
    """The steps that were not finite, and what became of them.

    Args:
        model: any module.
        on: what to do.
        recorder: writes the last steps, if there is one.
        ranks: with whom one verdict is found.

    Attributes:
        origins: step -> origin, in the order in which they were found.
        skipped: the steps that were left out.
        was_bad: whether the step before was not finite.
    """

    def __init__(self, model: nn.Module, on: On, recorder: Recorder | None, ranks: Ranks) -> None:
        self.origins: dict[int, Origin] = {}
        self.skipped: list[int] = []
        self.was_bad = False
        self._model, self._on, self._recorder, self._ranks = model, on, recorder, ranks

    def hit(self, kept: Kept, step: GuardedStep, evidence: Evidence) -> None:
        """A step is not finite.

        Raises:
            NonFiniteError: that was asked for.
        """
        if self.was_bad and (self._on != "skip" or step.number in self.origins):
            return  # It is known, or it follows from a step before about which nothing was done.
        self.was_bad = True
        with self._paused(kept):
            evidence = replace(evidence, are_equal=self._ranks.agree(len(step.calls)))
            own = investigate(self._model, kept, step.calls, evidence)
            origin = self._ranks.verdict(own)
            if origin is None:
                origin = when_clean(self._model, kept, step.calls, evidence)
        self.origins[step.number] = origin
        self._note({"origin": json.dumps(origin.as_dict())})
        self.record(step, f"step {step.number} is not finite", origin)
        self._act(f"step {step.number}: {origin.text}", origin)

    @contextmanager
    def _paused(self, kept: Kept) -> Iterator[None]:
        """Inside, neither the guard nor a watch of the model takes note of calls."""
        kept.detach()
        with ExitStack() as pauses:
            for watch in watches_of(self._model):
                pauses.enter_context(watch.pause())
            try:
                yield
            finally:
                kept.attach()

    def record(self, step: GuardedStep, why: str, origin: Origin | None = None) -> None:
        """Have the flight recorder write, if there is one."""
        if self._recorder is not None:
            random = step.calls[0].random if step.calls else ()
            entry = None if origin is None else origin.as_dict()
            self._recorder.write(why, step.numbers, step.ids, random, entry)

    def _act(self, text: str, origin: Origin) -> None:
        if self._on == "raise":
            raise NonFiniteError(text, origin)
        if self._on == "warn":
            warnings.warn(f"torchtap: {text}", stacklevel=2)
        elif callable(self._on):
            self._on(origin)

    def is_left_out(self, step: GuardedStep) -> bool:
        """Return whether the optimizer is to leave a step out that is not finite, and count it."""
        if self._on != "skip":
            return False
        self.skipped.append(step.number)
        self._note({"skipped": True})
        return True

    def _note(self, labels: dict[str, object]) -> None:
        for watch in watches_of(self._model):
            note_of_step(watch, labels)
