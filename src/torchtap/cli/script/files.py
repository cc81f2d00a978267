"""The files that ``torchtap run`` writes, and the line that it says of them at the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchtap.core.text import plural

if TYPE_CHECKING:
    from torchtap.capture.training.trained_model import TrainedModel

_MOST_SECONDS = 30.0
_MOST_LOST = 0.1
_MOST_SHARE = 0.02
"""What a process that dies at once may lose: so many seconds, or this share of its steps. Saving
takes no more than that share of the time."""


class ScriptFiles:
    """Saves the runs of a script as it goes on, and at its end.

    Args:
        target: the file of a run; of several runs, names or numbers are put before its ending.
        rank: of this process, under ``torchrun``.

    Attributes:
        written: file -> the run in it, as words.
        failure: why the last saving failed.
    """

    def __init__(self, target: Path, *, rank: int | None) -> None:
        self.written: dict[Path, str] = {}
        self.failure = ""
        ending = "" if rank is None else f".rank{rank}"
        self._target = target.with_name(f"{target.stem}{ending}{target.suffix}")
        self._first = self._next = 0.0

    def save_now_and_then(self, models: Sequence[TrainedModel]) -> None:
        """After the first step, and then ever more rarely, up to every 30 seconds."""
        began = time.perf_counter()
        if began < self._next:
            return
        self._first = self._first or began
        self.save(models)
        now = time.perf_counter()
        wait = min(_MOST_SECONDS, (now - self._first) * _MOST_LOST)
        self._next = now + max(wait, (now - began) / _MOST_SHARE)

    def save(self, models: Sequence[TrainedModel]) -> None:
        """Write the run of each model that was trained; each file appears whole or not at all."""
        trained = [model for model in models if model.has_trained and model.watch is not None]
        before, self.written, self.failure = list(self.written), {}, ""
        for model, path in zip(trained, self._paths(trained), strict=True):
            assert model.watch is not None
            try:
                model.watch.run.save(path)
            except Exception as error:  # noqa: BLE001 - a full disk must not stop the training
                self.failure = f"{path.name} was not written: {error}"
                continue
            self.written[path] = _described(model)
        for path in before:  # Another model came, and this one has a name now.
            if path not in self.written and not self.failure:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _paths(self, models: Sequence[TrainedModel]) -> list[Path]:
        if len(models) == 1:
            return [self._target]
        names = [model.variable or model.kind for model in models]
        twice = {name for name in names if names.count(name) > 1}
        named = [f"{number}" if name in twice else name for number, name in enumerate(names)]
        stem, ending = self._target.stem, self._target.suffix
        return [self._target.with_name(f"{stem}.{name}{ending}") for name in named]


def _described(model: TrainedModel) -> str:
    assert model.watch is not None
    run, state = model.watch.run, model.state
    total = model.num_steps + state.is_complete
    recorded = sum(1 for step in run.steps if step < total)
    steps = plural(total, "step") if recorded == total else f"{recorded} of {plural(total, 'step')}"
    if state.has_run and not state.is_complete:
        steps += " and part of one"
    num_absent = len(model.watch.absent)
    return f"{model.kind}, {steps}, {plural(len(run.sites), 'site')}, {num_absent} absent"
