"""The size of a sink's output, planned before it is written. Knows nothing of torch."""

from __future__ import annotations

from dataclasses import dataclass

from torchtap.core.text import plural, size


@dataclass(frozen=True, slots=True)
class PlannedSize:
    """The size of a sink's output, as far as is known now. Its text says it.

    Attributes:
        target: where it is written.
        written_per_step: bytes of a step that is recorded: its values, and what is kept of each.
        values_per_step: bytes of the values alone, which count against ``max_bytes``.
        measured_per_step: bytes of the statistics of a step.
        fixed_bytes: that do not grow with the steps.
        unknown: ports whose values have no size before they flowed; empty once a step ran.
        is_most: whether it may be less, because a function chooses parts of the values.
        every: of how many steps of the training one is recorded.
        num_steps: how many the training is planned to have; ``None`` where that is not known.
        max_bytes: the budget of all values; ``None`` for none.

    Example:
        >>> from torchtap.core.planned_size import PlannedSize
        >>> print(PlannedSize("run", 2048, 2000, num_steps=1024))
        2 KiB a step, 2 MiB in 1,024 steps
    """

    target: str
    written_per_step: int = 0
    values_per_step: int = 0
    measured_per_step: int = 0
    fixed_bytes: int = 0
    unknown: tuple[str, ...] = ()
    is_most: bool = False
    every: int = 1
    num_steps: int | None = None
    max_bytes: int | None = None

    @property
    def bytes_per_step(self) -> int:
        """Bytes of a step that is recorded, with its statistics."""
        return self.written_per_step + self.measured_per_step

    @property
    def total_bytes(self) -> int | None:
        """Bytes of the whole; ``None`` where the number of steps, or a size, is not known."""
        if self.num_steps is None or self.unknown:
            return None
        recorded = -(-self.num_steps // self.every)
        full = self.recorded_until_full
        written = recorded if full is None else min(recorded, full)
        measured = self.measured_per_step * recorded
        return self.fixed_bytes + self.written_per_step * written + measured

    @property
    def recorded_until_full(self) -> int | None:
        """After how many recorded steps ``max_bytes`` is full; ``None`` where it has no end."""
        if self.max_bytes is None or not self.values_per_step:
            return None
        return self.max_bytes // self.values_per_step

    def __str__(self) -> str:
        said = [f"{'at most ' if self.is_most else ''}{size(self.bytes_per_step)} a step"]
        if self.every > 1:
            said[0] += f" that is recorded, one of {self.every:,}"
        total, full = self.total_bytes, self.recorded_until_full
        if total is not None and self.num_steps is not None:
            said.append(f"{size(total)} in {plural(self.num_steps, 'step')}")
        if full is not None and not self.unknown:
            said.append(f"max_bytes is full after {plural(full, 'such step')}")
        if self.unknown:
            is_any = bool(self.bytes_per_step)
            more = f"and {', '.join(self.unknown)}, of a size that is known once a step ran"
            said = [*said, more] if is_any else [more.removeprefix("and ")]
        return ", ".join(said)
