"""``tt.Disk``: the sink that writes what flows into a folder, beside the training."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchtap.core.absence import WHOLE_RUN, Absence
from torchtap.core.distributed import PLAIN
from torchtap.core.errors import CaptureError, RunError
from torchtap.core.planned_size import PlannedSize
from torchtap.core.ports import EVERY_SITE
from torchtap.core.record import UNVERSIONED, Record
from torchtap.core.site import Site
from torchtap.core.tensors import obstacle
from torchtap.core.torch_private import is_of_transform
from torchtap.runs.about import About
from torchtap.runs.meta import Meta
from torchtap.runs.records import Records
from torchtap.runs.select import Where
from torchtap.runs.store.attempt_recording import Recording
from torchtap.runs.store.disk_settings import Durability, OnError, OnFull, Settings
from torchtap.runs.store.intake import Intake
from torchtap.runs.store.new_attempt import refuse_path
from torchtap.runs.store.rank_source import RankSource
from torchtap.runs.store.selecting import Pick, WriteSelection
from torchtap.runs.store.size_estimate import after_steps, before_a_step, size_of_statistics
from torchtap.runs.store.staging import CLONED
from torchtap.runs.strided import storable

if TYPE_CHECKING:
    from torchtap.runs.store.worker import Worker

DATA_SET = "data set"
"""The label ``kind`` of runs of which each step is a batch, also if not all ranks have a part."""


class Disk:
    """A sink that writes every record into a folder, beside the training.

    ``tt.open(path)`` reads it, also while it grows. A step is committed within 20 ms after
    ``w.step()`` closes it, unless the disk is slower; after a crash every committed step is there,
    whole, and those that were not are named. docs/reference/format.md says what stands in the
    folder. Each rank of ``torch.distributed`` writes a folder of its own in it.

    A value is copied inside of the hook, into memory that is used again, and written by a thread.

    Args:
        path: the folder of the run; made if it is not there.
        values: which of the values that are watched are written, as in :meth:`Run.records`; all by
            default, and for ``None`` none at all: with ``tt.Stats()`` beside it the run then has
            statistics alone.
        every: write the values of steps whose number is divisible by ``every``.
        dtype: round wider floating-point values to this dtype; a label of the record says so.
        pick: a function that returns the part of a value to be written, ``f(tensor)`` or
            ``f(tensor, record)``, such as ``lambda x: x[:4]`` for a few rows,
            ``lambda x, record: x if record.call == 0 else None`` for the first call of a step;
            ``None`` for nothing. It must not draw random numbers. A label says that it is a part.
        max_bytes: of all values together. Values that come beyond are left out and counted as
            dropped.
        queue_bytes: how many bytes may wait to be written. One value that is larger waits alone.
        on_full: what happens to a value that finds no room: the training waits (``wait``), or the
            value is left out and counted (``drop``, see ``num_dropped``), or the sink ends with an
            error that the next ``w.step()`` raises (``raise``).
        durability: when data is synced, so that it survives a power loss: ``step``, after each
            step; ``close``, on flush and close; ``none``, never explicitly. Committed values
            survive a killed process in all cases.
        resume: append a new attempt to an existing run, as a training that starts again from a
            checkpoint does; its steps replace those of earlier attempts from its first step on.
        on_error: what an error of the recording does, such as a full disk, a ``pick`` that raises,
            or a queue that is full with ``on_full="raise"``. ``raise``: the next ``w.step()``
            raises it. ``warn``: it warns, and the training goes on unrecorded. Committed values
            stay readable in both cases, and ``absent`` says that the rest is lost. A value that its
            own class does not give, as of a ``MaskedTensor``, is absent with the reason, and the
            others are recorded.
        num_steps: how many steps the training is planned to have: ``w.plan`` then says how large
            the run will be.
        labels: what else is to be written down of the run, text to text: ``run.meta.labels``.

    Attributes:
        num_dropped: how many values were left out because the queue, or ``max_bytes``, was full.
        dropped_bytes: how many bytes they had.
        folder: where this process writes; ``None`` before it does.

    Raises:
        InputError: an argument is none of those above.
        RunError: there is something else at ``path``, or a run and ``resume`` is false.
        MissingExtraError: pyarrow is not installed.

    Example:
        >>> import tempfile, torch, torchtap as tt
        >>> model, path = torch.nn.Linear(2, 3), tempfile.mkdtemp() + "/run"
        >>> with tt.watch(model, to=tt.Disk(path)) as w:
        ...     for _ in range(4):
        ...         _ = model(torch.ones(5, 2))
        ...         w.step()
        >>> run = tt.open(path)
        >>> run.steps, run.cat(".:output").shape
        ([0, 1, 2, 3], torch.Size([20, 3]))
    """

    keeps = False

    def __init__(
        self,
        path: str | Path,
        *,
        values: Where = EVERY_SITE,
        every: int = 1,
        dtype: torch.dtype | None = None,
        pick: Pick | None = None,
        max_bytes: int | None = None,
        queue_bytes: int = 256 << 20,
        on_full: OnFull = "wait",
        durability: Durability = "close",
        resume: bool = False,
        on_error: OnError = "raise",
        num_steps: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = Settings(
            queue_bytes=queue_bytes,
            max_bytes=max_bytes,
            num_steps=num_steps,
            on_full=on_full,
            durability=durability,
            on_error=on_error,
            resume=resume,
        )
        self._settings.check()
        self._selection = WriteSelection(values, every, dtype, pick)
        self._selection.check()
        import torchtap.runs.store.streams  # noqa: F401 - says at once what is to be installed

        self.path = Path(path)
        refuse_path(self.path)
        self.folder: Path | None = None
        self._labels = dict(labels or {})
        self._about = About()
        self._meta = Meta()
        self._intake = Intake(repr(self), self._settings)
        self._recording: Recording | None = None
        self._source: RankSource | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._unreadable: dict[Absence, None] = {}
        self._is_closed = False
        self._quick: dict[int, Site] = {}

    @property
    def num_dropped(self) -> int:
        """Return the number of values left out because the queue, or ``max_bytes``, was full."""
        return self._intake.num_dropped

    @property
    def dropped_bytes(self) -> int:
        """Return the number of bytes of the values that were left out."""
        return self._intake.dropped_bytes

    @property
    def resumes(self) -> bool:
        """Return whether the sink goes on with a run that is there."""
        return self._settings.resume

    def describe(self, labels: Mapping[str, str], num_steps: int | None = None) -> None:
        """Write down more of the run, before it begins, and how many steps it will have."""
        self._labels |= labels
        if self._settings.num_steps is None:
            self._settings = replace(self._settings, num_steps=num_steps)

    # ------------------------------------------------------------------ as a sink

    def begin(self, about: About) -> None:
        """A watch begins; make the folder.

        Raises:
            RunError: there is a run already, or another process writes it.
            OSError: the folder cannot be made.
        """
        if self._recording is not None:
            raise CaptureError(
                f"{self!r} belongs to another watch. Give each watch a tt.Disk of its own, the "
                f"second one with resume=True."
            )
        self._about, selection = about, self._selection
        self._recording = recording = Recording(
            self.path,
            about,
            labels=self._labels,
            values_every=None if selection.values is None else selection.every,
            settings=self._settings,
            intake=self._intake,
            on_failure=self._quick.clear,
        )
        self.folder, self._meta = recording.folder, recording.meta
        # A watch that is dropped without close() still leaves a whole run.
        recording.close_when_collected(self)

    def take(self, record: Record) -> None:
        """Copy one value, and hand it to the thread.

        Raises:
            CaptureError: the queue is full, with ``on_full="raise"``.
        """
        # By position (kept, site, version): that is faster than attributes.
        tensor, site, version = record[6], record[0], record[7]
        # Most values are small plain tensors of sites that were looked at: that must be quick.
        if (
            # By identity: the hash of a site takes longer than all else here. The table keeps the
            # site alive, so its id is no other's.
            self._quick.get(id(site)) is site
            and type(tensor) is Tensor
            and tensor.dtype in CLONED
            and tensor.is_cpu
            and tensor.layout is torch.strided
            and not tensor.is_nested
            and (version == UNVERSIONED or tensor._version == version)
            and not is_of_transform(tensor)
            and self._intake.take_small(record, tensor)
        ):
            return
        recording = self._ready()
        if recording is None or recording.worker.failure is not None:
            self._quick.clear()
            return
        if not self._selection.wants(record, self._meta):
            return
        if self._selection.takes_whole:
            self._quick[id(site)] = site
        try:
            self._take(record)
        except Exception as error:  # noqa: BLE001 - raised again where it is to be
            self._refuse(record, recording.worker, error)

    def _refuse(self, record: Record, worker: Worker, error: Exception) -> None:
        """Deal with a value that could not be taken: where its class does not give it, say so.

        Raises:
            Exception: the error, with ``on_error="raise"``.
        """
        if type(record.kept) not in PLAIN:  # The class of the tensor may raise anything.
            first = str(error).partition("\n")[0]
            why = f"{type(error).__name__}: {first}" if first else type(error).__name__
            kind = type(record.kept).__name__
            reason = f"a {kind} whose values its class does not give ({why})"
            self._unreadable[Absence(record.site, reason)] = None
        elif self._settings.on_error == "raise":
            raise error
        else:
            worker.give_up(error)

    def _take(self, record: Record) -> None:
        why = _why_unwritable(record)
        if why is not None:
            self._unreadable[Absence(record.site, why)] = None
            return
        value = record.value
        try:
            is_dense = self._selection.pick is not None  # Such a function expects a dense tensor.
            whole, said = storable(value, record.labels, dense=is_dense)
        except RunError as error:
            self._unreadable[Absence(record.site, str(error))] = None
            return
        tensor, labels = self._selection.of(whole, said, record)
        self._intake.take(record, tensor, labels)

    def close_step(self, step: int) -> None:
        """Commit the step.

        Raises:
            Exception: what the thread raised since the last time.
        """
        recording = self._ready()
        if recording is not None:
            recording.close_step(step)
            recording.raise_failure()

    def flush(self) -> None:
        """Wait until every step that was closed is written and can be read.

        Raises:
            Exception: what the thread raised since the last time.
        """
        if self._recording is not None:
            self._recording.flush(is_closed=self._is_closed)
            self._recording.raise_failure()

    def sync(self) -> None:
        """Commit what has come, also of the running step, and wait as :meth:`flush` does.

        ``w.sync()`` calls it, before a training saves a checkpoint.

        Raises:
            Exception: what the thread raised since the last time.
        """
        recording = self._ready()
        if recording is not None:
            recording.commit_running()
            self.flush()

    def close(self) -> None:
        """Commit what is there, write the index and end the thread.

        Raises:
            Exception: what the thread raised since the last time.
        """
        recording = self._recording
        # A forked child closes a copy of this object when it exits; the files are its parent's.
        if recording is None or self._is_closed or os.getpid() != self._process:
            return
        self._is_closed = True
        self._quick.clear()
        recording.close()
        recording.raise_failure()

    def contents(self) -> Records:
        """Return the records of the steps that were committed, in the order of their arrival."""
        recording = self._recording
        if recording is None:
            return Records()
        if recording.worker.is_running and recording.worker.failure is None:
            # Commits that wait in memory can be read once they are written.
            recording.worker.ask("drain")
        if self._source is None:
            self._source = RankSource(recording.folder, verify=True)
        else:
            self._source.refresh()
        return self._source.records

    def planned_size(self) -> PlannedSize:
        """Estimate how large the run will be, from the plan or from the steps that were written."""
        about, how = self._about, self._settings
        series = None if about.series is None else about.series()
        measured, fixed = size_of_statistics(series, how.num_steps)
        size = PlannedSize(
            str(self.path),
            measured_per_step=measured,
            fixed_bytes=fixed,
            unknown=() if measured or series is None else ("statistics",),
            every=about.every or 1,
            num_steps=how.num_steps,
            max_bytes=how.max_bytes,
        )
        done, selection = self._intake.committed, self._selection
        has_run = done.num_steps or (selection.values is None and done.num_recorded)
        if has_run and self._recording is not None:
            return after_steps(size, done, self._recording.worker.written, selection.every)
        return before_a_step(size, about.plan, selection, self._meta)

    @property
    def absent(self) -> tuple[Absence, ...]:
        """Return the values that were given to the sink and could not be written, with reasons."""
        absences = [*self._unreadable]
        if self.num_dropped:
            reason = (
                f"{self.num_dropped:,} values ({self.dropped_bytes:,} bytes) were dropped, because "
                f"the queue to the disk or its max_bytes were full; the run says where"
            )
            absences.append(Absence(WHOLE_RUN, reason))
        recording = self._recording
        if recording is not None and recording.worker.failure is not None:
            error = recording.worker.failure
            reason = (
                f"writing to {self.path} ended with {type(error).__name__}: {error}; "
                f"{recording.what_is_left}"
            )
            absences.append(Absence(WHOLE_RUN, reason))
        return tuple(absences)

    # ------------------------------------------------------------------ to the thread

    def _ready(self) -> Recording | None:
        """Return the recording, which begins where no watch began it; ``None`` when all is over."""
        if os.getpid() != self._process:
            raise CaptureError(
                "tt.Disk was taken along into a process that was forked, which has no thread to "
                "write. Make the watch and its sink in that process."
            )
        if self._is_closed:
            return None
        with self._lock:  # Several threads may bring the first value.
            if self._recording is None:
                self.begin(self._about)
            return self._recording

    def __repr__(self) -> str:
        return f"<Disk {str(self.path)!r}>"


def _why_unwritable(record: Record) -> str | None:
    tensor = record.kept
    if tensor.is_meta:
        return "a meta tensor, which has no values to write"
    return obstacle(tensor)
