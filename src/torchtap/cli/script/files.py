"""The files that ``torchtap run`` writes, and the line that it says of them at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torchtap.cli.script.cadence import Cadence
from torchtap.cli.script.described import described

if TYPE_CHECKING:
    from torchtap.capture.training.trained_model import TrainedModel
    from torchtap.core.record import Sink


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
        self._cadence = Cadence()

    # ------------------------------------------------------------------ as a destination

    def sinks(self, model: TrainedModel) -> list[Sink]:
        """Statistics in memory; means over samples would take a copy of each output."""
        import torchtap as tt

        return [tt.Stats(sample_mean=())]

    def begin(self, model: TrainedModel) -> int:
        """Steps count from 0."""
        return 0

    def drop(self, model: TrainedModel) -> None:
        """Nothing was written of it."""

    # ------------------------------------------------------------------ written

    def save_now_and_then(self, models: Sequence[TrainedModel]) -> None:
        """After the first step, and then ever more rarely."""
        self._cadence.run(partial(self.save, models))

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
            self.written[path] = described(model)
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
