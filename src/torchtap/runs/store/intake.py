"""Takes values from the training, and hands them to the thread that writes, step by step."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchtap.core.errors import CaptureError
from torchtap.core.record import Record
from torchtap.core.shared_state import new_lock
from torchtap.runs.sparse import dtype_of, is_sparse, packed
from torchtap.runs.store.disk_settings import Settings
from torchtap.runs.store.layout import MOST_SMALL
from torchtap.runs.store.queue import ByteQueue, EndOfStep, SmallValues, Staged, Values
from torchtap.runs.store.site_text import site_text
from torchtap.runs.store.staging import Buffers, Stager, rounded
from torchtap.runs.strided import copyable

_MOST_GATHERED = 4 << 20
"""Bytes of small values that are handed to the thread together."""
_MOST_CLONED = 16 << 10
"""Plain values of up to so many bytes are cloned: finding them a buffer takes longer."""
_CLONE = 512
"""Bytes that a clone takes beside its elements, at most."""
_CREDIT = 256 << 10
"""Bytes of the queue that are taken at once for values that are cloned."""
_PAUSE = 0.02
"""Seconds for which the thread that writes waits for further steps."""


class Committed(NamedTuple):
    """The numbers of steps, values and bytes that were committed.

    Attributes:
        num_steps: steps with values.
        num_recorded: steps that were recorded, with values to be written or without.
        num_values: values.
        num_bytes: of these.
    """

    num_steps: int = 0
    num_recorded: int = 0
    num_values: int = 0
    num_bytes: int = 0


class Intake:
    """Copies values into a bounded queue; counts what found no room in it, or in the budget.

    Hooks of several threads may call it.

    Args:
        name: of the sink, for messages.
        settings: its bounds, and what happens where they are reached.

    Attributes:
        queue: to the thread that writes.
        buffers: in which the values wait.
        num_values: that were taken.
        num_bytes: of these.
        num_dropped: values that found no room.
        dropped_bytes: of these.
        committed: how many steps and values were committed.
        has_uncommitted: whether anything came since the last commit.
        last_step: of the last value.
        last_committed: the last step that was committed, if any.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        pause = 0.0 if settings.durability == "step" else _PAUSE
        self.queue = queue = ByteQueue(settings.queue_bytes, pause)
        self.buffers = Buffers(settings.queue_bytes, lambda: queue.num_bytes)
        self.num_values = self.num_bytes = 0
        self.num_dropped = self.dropped_bytes = 0
        self.committed = Committed()
        self.has_uncommitted = False
        self.last_step = 0
        self.last_committed: int | None = None
        self._name = name
        self._settings = settings
        self._stager = Stager()
        self._lock = new_lock()
        self._gathered: list[Staged] = []
        self._gathered_bytes = 0
        self._dropped: dict[str, tuple[int, int]] = {}
        self._clones: list[tuple[int, Any, Tensor]] = []
        self._clone_room = self._credit = 0
        # Room is taken ahead for many clones, which a budget or a small queue cannot spare.
        self._is_roomy = settings.max_bytes is None and settings.queue_bytes >= 8 * _CREDIT

    def take_small(self, record: Record, tensor: Tensor) -> bool:
        """Copy a small value of a plain tensor on the CPU; ``False`` where :meth:`take` is to."""
        nbytes = tensor.nbytes
        if nbytes > _MOST_CLONED or not self._is_roomy:
            return False
        room = nbytes + _CLONE
        with self._lock:
            if self._credit < room:
                # Taken ahead for many values, since the lock of the queue costs more than the clone
                # of one.
                if not self.queue.reserve(_CREDIT, wait=False):
                    return False
                self._credit += _CREDIT
            if tensor.is_contiguous():
                clone = tensor.clone()
            else:
                clone = tensor.clone(memory_format=torch.contiguous_format)
            # Clones and copies reach the thread on two ways; the number puts them into the order of
            # arrival.
            self._clones.append((self.num_values, record[:6], clone))
            self._credit -= room
            self._clone_room += room
            self.num_values += 1
            self.has_uncommitted = True
            self.last_step = record[1]
            if self._clone_room > _MOST_GATHERED:
                self._hand_gathered()
        return True

    def take(self, record: Record, tensor: Tensor, labels: Sequence[str]) -> None:
        """Copy one value, and hand it on.

        Args:
            record: of it.
            tensor: its numbers, strided or sparse.
            labels: what is to be written down of them.

        Raises:
            CaptureError: the queue is full, with ``on_full="raise"``.
        """
        shape = tuple(tensor.shape)
        if is_sparse(tensor):
            dtype, tensor = dtype_of(tensor), packed(tensor)
        else:
            dtype, tensor = str(tensor.dtype).removeprefix("torch."), copyable(tensor)
        nbytes = tensor.numel() * tensor.element_size()
        room = rounded(nbytes)
        most = self._settings.max_bytes
        with self._lock:
            if most is not None and self.num_bytes + nbytes > most:
                self._drop(record, nbytes)
                return
            is_roomy = self.queue.reserve(room, wait=False)
            if not is_roomy and not self._make_room(record, room, nbytes):
                return
            # Pinned, since only then a copy from the device runs beside the computation.
            buffer = self.buffers.take(nbytes, pinned=tensor.device.type == "cuda")
            try:
                arrived = self._stager.copy(tensor, buffer)
            except BaseException:  # Room that is never given back would stop the training for good.
                self.queue.release(room)
                raise
            key = (*record[:5], tuple(labels))
            size = (nbytes, room)
            self._hand_over(Staged(self.num_values, key, dtype, shape, buffer, *size, arrived))
            self.num_values += 1
            self.num_bytes += nbytes
            self._note_step(record.step)

    def count_recorded(self) -> None:
        """A step ends that was recorded."""
        done = self.committed
        self.committed = done._replace(num_recorded=done.num_recorded + 1)

    def commit(
        self,
        step: int,
        *,
        is_closed: bool,
        notes: tuple[Sequence[int | str], dict[str, Any]],
        scalars: Mapping[str, Any],
    ) -> None:
        """Have what came since the last time committed, as a step.

        Args:
            step: which.
            is_closed: whether it has ended.
            notes: its ids and labels.
            scalars: numbers that were logged in it.
        """
        with self._lock:  # Gradients may arrive in another thread meanwhile.
            self._hand_gathered()
            dropped, self._dropped = self._dropped, {}
            ids, labels = notes
            # The queue keeps its order, so the commit comes behind all values that it names.
            end = EndOfStep(
                step=step,
                time=time.time(),
                is_closed=is_closed,
                ids=ids,
                labels=labels,
                scalars=dict(scalars),
                dropped=dropped,
            )
            self.queue.put(end, urgent=False)
            done = self.committed
            # A step of which a flush committed a part is one step.
            has_values = self.num_values > done.num_values and step != self.last_committed
            self.committed = done._replace(
                num_steps=done.num_steps + has_values,
                num_values=self.num_values,
                num_bytes=self.num_bytes,
            )
            self.has_uncommitted = False
            self.last_committed = step

    # ------------------------------------------------------------------ no room

    def _make_room(self, record: Record, room: int, nbytes: int) -> bool:
        """Handle a value that finds no room at once; return whether it has some now."""
        self._hand_gathered()
        if self._settings.on_full == "wait":
            return self.queue.reserve(room, wait=True)
        if self._settings.on_full == "raise":
            raise CaptureError(
                f"The queue of {self._name} is full: {self.queue.num_bytes:,} of "
                f"{self.queue.max_bytes:,} bytes wait, and {record.site} has {nbytes:,} more. "
                f"Record less, give more queue_bytes, or let the training wait (on_full='wait')."
            )
        self._drop(record, nbytes)
        return False

    def _drop(self, record: Record, nbytes: int) -> None:
        """Leave a value out, and count it."""
        site = site_text(record.site)
        number, total = self._dropped.get(site, (0, 0))
        self._dropped[site] = number + 1, total + nbytes
        self.num_dropped += 1
        self.dropped_bytes += nbytes
        self._note_step(record.step)

    def _note_step(self, step: int) -> None:
        self.has_uncommitted = True
        self.last_step = step

    # ------------------------------------------------------------------ to the thread

    def _hand_over(self, staged: Staged) -> None:
        """Large values at once, so that they are written while the step goes on; small together."""
        if staged.nbytes > MOST_SMALL:
            self.queue.put(Values((staged,)))
            return
        self._gathered.append(staged)
        self._gathered_bytes += staged.room
        if self._gathered_bytes > min(_MOST_GATHERED, self.queue.max_bytes // 2):
            self._hand_gathered()

    def _hand_gathered(self) -> None:
        if self._gathered:
            self.queue.put(Values(tuple(self._gathered)), urgent=False)
            self._gathered.clear()
            self._gathered_bytes = 0
        if self._clones:
            self.num_bytes += self._clone_room - _CLONE * len(self._clones)
            self.queue.put(SmallValues(self._clones, self._clone_room), urgent=False)
            self._clones, self._clone_room = [], 0
        if self._credit:
            # Room that was taken ahead and not used is free for others between two steps.
            self.queue.release(self._credit)
            self._credit = 0
