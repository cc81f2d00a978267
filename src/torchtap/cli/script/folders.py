"""The folders that ``torchtap run --to FOLDER`` writes: a ``tt.Disk`` for each model."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchtap.cli.parsing import discard_attempt
from torchtap.cli.script.cadence import Cadence
from torchtap.cli.script.described import described
from torchtap.core.errors import CaptureError

if TYPE_CHECKING:
    import torchtap as tt
    from torchtap.capture.training.trained_model import TrainedModel
    from torchtap.core.absence import Absence
    from torchtap.core.record import Record, Sink
    from torchtap.runs.about import About
    from torchtap.runs.meta import Meta
    from torchtap.runs.store.disk import Disk


@dataclass(frozen=True, slots=True)
class FolderSettings:
    """The settings of a folder: what is written into it, and where it goes on.

    Attributes:
        path: of the run; of further models, a dot and a name stand behind it.
        values: which values are kept; none where only statistics are.
        every: of how many steps the values of one are kept.
        resume: whether there may be a run, with which this goes on.
        first_step: the number of the first step; after the last one that is there by default.
    """

    path: Path
    values: tuple[str, ...] = ()
    every: int = 1
    resume: bool = False
    first_step: int | None = None


class ScriptFolders:
    """Writes the run of each model of a script into a folder, beside the training.

    Args:
        settings: what is written, and where.
        rank: of this process, under ``torchrun``.

    Attributes:
        written: folder -> the run in it, as words.
        failure: why the last writing failed.
    """

    def __init__(self, settings: FolderSettings, *, rank: int | None) -> None:
        self.written: dict[Path, str] = {}
        self.failure = ""
        self._settings = settings
        self._rank = rank
        self._folders: dict[int, LateDisk] = {}
        self._known: list[TrainedModel] = []
        self._cadence = Cadence()

    # ------------------------------------------------------------------ as a destination

    def sinks(self, model: TrainedModel) -> list[Sink]:
        """Statistics in memory and in a folder that is made when the training begins."""
        import torchtap as tt

        stats = tt.Stats(sample_mean=())
        disk = LateDisk(self._settings, rank=self._rank)
        self._folders[id(model)] = disk
        self._known.append(model)
        return [stats, disk] if self._settings.values else [MeasuredDisk(stats, disk)]

    def begin(self, model: TrainedModel) -> int:
        """Make the folder, named by what is known of the models now."""
        return self._folders[id(model)].open(self._path_of(model))

    def drop(self, model: TrainedModel) -> None:
        """Take away what was made for a model that is not trained."""
        self._known.remove(model)
        self._folders.pop(id(model)).discard()

    def _path_of(self, model: TrainedModel) -> Path:
        path, name = self._settings.path, model.variable or model.kind
        if len(self._known) == 1:
            return path
        taken = {folder.path for folder in self._folders.values()}
        free_path, number = path.with_name(f"{path.name}.{name}"), 0
        while free_path in taken:
            number += 1
            free_path = path.with_name(f"{path.name}.{name}{number}")
        return free_path

    # ------------------------------------------------------------------ as the files are

    def save_now_and_then(self, models: Sequence[TrainedModel]) -> None:
        """Hand on what was measured; values are there with each step."""

        def flush() -> None:
            for model in models:
                self._folders[id(model)].flush()

        self._cadence.run(flush)

    def save(self, models: Sequence[TrainedModel]) -> None:
        """Say what was written; the watches have been closed, and their folders with them."""
        self.written, self.failure = {}, ""
        for model in models:
            folder = self._folders[id(model)]
            if folder.path is None or model.watch is None:
                continue
            self.written[folder.path] = described(model)


class LateDisk:
    """A ``tt.Disk`` whose folder is known when the training begins, and not when the watch does.

    Args:
        settings: what is written.
        rank: of this process, for trainings that make no process group.

    Attributes:
        path: of the run; ``None`` before it is opened.
    """

    keeps = False

    def __init__(self, settings: FolderSettings, *, rank: int | None) -> None:
        self.path: Path | None = None
        self._settings = settings
        self._rank = rank
        self._disk: Disk | None = None
        self._about: About | None = None

    def begin(self, about: About) -> None:
        """A watch begins."""
        self._about = replace(about, meta=self._ranked(about.meta))

    def _ranked(self, meta: Callable[[], Meta]) -> Callable[[], Meta]:
        """Ranks that ``torchrun`` started have a number also without a process group."""
        rank, world_size = self._rank, os.environ.get("WORLD_SIZE", "")

        def ranked() -> Meta:
            found = meta()
            if rank is None or not world_size.isdecimal() or (found.world_size or 1) > 1:
                return found
            return replace(found, rank=rank, world_size=int(world_size))

        return ranked

    def open(self, path: Path) -> int:
        """Make the folder.

        Returns:
            the number of the first step.

        Raises:
            RunError: there is a run already and it is not gone on with, or of another model.
            OSError: the folder cannot be made.
        """
        from torchtap.runs.store.disk import Disk

        how = self._settings
        assert self._about is not None
        first = how.first_step
        if first is None:
            first = _step_after(path, self._about.meta().rank or 0) if how.resume else 0
        values = list(how.values) or None
        disk = Disk(path, values=values, every=how.every, resume=how.resume)
        disk.begin(self._about)
        self.path, self._disk = path, disk
        return first

    def discard(self) -> None:
        """Take the folder of this attempt away, and the run's if nothing else is in it."""
        if self._disk is not None:
            discard_attempt(self._disk)
        self._disk = self.path = None

    # ------------------------------------------------------------------ as a sink

    def take(self, record: Record) -> None:
        """Write one value."""
        if self._disk is None:
            raise CaptureError(
                f"{record.site} came before the training of its model was seen to begin, so there "
                f"is no folder for it"
            )
        self._disk.take(record)

    def close_step(self, step: int) -> None:
        """Commit the step."""
        if self._disk is not None:
            self._disk.close_step(step)

    def flush(self) -> None:
        """Hand over what was measured."""
        if self._disk is not None:
            self._disk.flush()

    def close(self) -> None:
        """Write the index, and end the thread."""
        if self._disk is not None:
            self._disk.close()

    def contents(self) -> Sequence[Record]:
        """Return the records of the steps that were committed."""
        return () if self._disk is None else self._disk.contents()

    @property
    def absent(self) -> tuple[Absence, ...]:
        """Return what could not be written."""
        return () if self._disk is None else self._disk.absent


class MeasuredDisk:
    """Statistics alone, in a folder: one sink, so that hooks call its meters and compile with them.

    Args:
        stats: what measures.
        disk: what writes the statistics.
    """

    keeps = False
    reads_backward = False

    def __init__(self, stats: tt.Stats, disk: LateDisk) -> None:
        self.take, self.meter, self.measured = stats.take, stats.meter, stats.measured
        self.unguarded = stats.unguarded
        self.begin = disk.begin
        self._stats, self._disk = stats, disk

    @property
    def absent(self) -> tuple[Absence, ...]:
        """Return what could not be measured, or written."""
        return (*self._stats.absent, *self._disk.absent)

    def close_step(self, step: int) -> None:
        """Close the step of both."""
        self._stats.close_step(step)
        self._disk.close_step(step)

    def close(self) -> None:
        """Close both."""
        self._stats.close()
        self._disk.close()


def _step_after(path: Path, rank: int) -> int:
    """Return the number after the last step that a rank has written."""
    from torchtap.runs.open_run import open_run
    from torchtap.runs.store.layout import attempts_in, rank_folder

    own = rank_folder(path, rank)
    if not own.is_dir() or not attempts_in(own):
        return 0
    found = open_run(own)
    logged = [step for name in found.scalar_names for step in found.scalars(name)[0]]
    return max([*found.steps, *logged], default=-1) + 1
