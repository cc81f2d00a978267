"""Keeps records in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtap.core.absence import Absence
from torchtap.core.errors import InputError
from torchtap.core.record import Record, nbytes_of
from torchtap.core.shared_state import new_lock
from torchtap.core.torch_private import run_uncompiled
from torchtap.runs.records import Records

if TYPE_CHECKING:
    from collections.abc import Callable


class Memory:
    """A sink that keeps every record in memory.

    Args:
        max_bytes: budget for the kept values, in bytes; ``None`` for no limit. When it is full,
            the oldest steps are forgotten as a whole; if the running step alone does not fit, its
            further values are not kept and are listed as absent. Values that share memory with
            the model's own count with their own size.
        max_steps: keep the last steps alone, so many that have ended, and the running one.

    Raises:
        InputError: ``max_bytes`` or ``max_steps`` is not positive.

    Example:
        >>> import torch, torchtap as tt
        >>> memory = tt.Memory(max_bytes=1 << 20)
        >>> with tt.watch(torch.nn.Linear(2, 3), to=memory) as w:
        ...     _ = torch.nn.Linear(2, 3)  # nothing is run here
        >>> memory.num_bytes
        0
    """

    def __init__(self, max_bytes: int | None = None, *, max_steps: int | None = None) -> None:
        for name, value in (("max_bytes", max_bytes), ("max_steps", max_steps)):
            if value is not None and value <= 0:
                raise InputError(f"Memory takes {name} above 0 or None, not {value!r}.")
        self.max_bytes = max_bytes
        self.max_steps = max_steps
        self._last_steps = deque[int](maxlen=max_steps)
        self.forgotten_steps: list[int] = []
        self._made: Records | None = None
        self._new: list[Record] = []
        self._lock = new_lock()  # The collector may close a watch under it.
        self._budgeted_bytes = 0
        self._refused: dict[Absence, None] = {}
        # Appending is all there is to do without a budget, and it is done for every value that
        # flows: no Python call in between. Columns are made of the records when a step ends.
        self.take: Callable[[Record], None] = (
            self._new.append if max_bytes is None else self._take_within_budget
        )
        self.unguarded = ("take",)
        self.skips_steps = max_steps is None  # Else each step counts, also an empty one.

    @property
    def rows(self) -> Sequence[Record]:
        """Return the records in the order of their arrival."""
        return self.contents()

    @property
    def num_bytes(self) -> int:
        """Bytes of the kept values."""
        return sum(map(nbytes_of, self.contents().values))

    @property
    def absent(self) -> tuple[Absence, ...]:
        """Return the values that did not fit into ``max_bytes``."""
        return tuple(self._refused)

    def contents(self) -> Records:
        """Return the records in the order of their arrival."""
        with self._lock:
            # A thread may append while this one reads: only what was read is taken away.
            new = self._new[:]
            records = self._made = Records() if self._made is None else self._made
            records.extend(new)
            del self._new[: len(new)]
            return records

    def clear(self) -> None:
        """Forget everything that was kept so far."""
        with self._lock:
            self._made = None
            self._new.clear()
            self._budgeted_bytes = 0

    def close_step(self, step: int) -> None:
        """Turn the records of the step into columns, and forget those of the oldest."""
        self.contents()
        if self.max_steps is None:
            return
        if len(self._last_steps) == self.max_steps:
            self._forget(self._last_steps[0])
        self._last_steps.append(step)

    def close(self) -> None:
        """Nothing more will come. The last records become columns when they are read."""

    def _take_within_budget(self, record: Record) -> None:
        assert self.max_bytes is not None
        size = record.nbytes
        while self._budgeted_bytes + size > self.max_bytes and self._forget_oldest(record.step):
            pass
        if self._budgeted_bytes + size > self.max_bytes:
            reason = (
                f"Memory(max_bytes={self.max_bytes:,}) was full in step {record.step}: watch "
                f"fewer sites, or give more bytes"
            )
            self._refused[Absence(record.site, reason)] = None
            return
        self._budgeted_bytes += size
        self._new.append(record)

    def _forget_oldest(self, running_step: int) -> bool:
        records = self.contents()
        oldest = int(records.column("step").min(initial=running_step))
        if oldest >= running_step:
            return False
        self._forget(oldest)
        self.forgotten_steps.append(oldest)
        return True

    def _forget(self, step: int) -> None:
        with self._lock:
            if self._made is not None:
                self._made = self._made.without_step(step)
        if self.max_bytes is not None:
            self._budgeted_bytes = self.num_bytes


run_uncompiled(Memory._take_within_budget)  # Native hooks call it, see ``capture/delivery.py``.
