"""Settings of a ``tt.Disk``, as the user asked for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchtap.core.errors import InputError

OnFull = Literal["wait", "drop", "raise"]
Durability = Literal["step", "close", "none"]
OnError = Literal["raise", "warn"]
_CHOICES = {
    "on_full": ("wait", "drop", "raise"),
    "durability": ("step", "close", "none"),
    "on_error": ("raise", "warn"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings for writing values; see :class:`~torchtap.runs.store.disk.Disk` for each."""

    queue_bytes: int
    max_bytes: int | None
    num_steps: int | None
    on_full: OnFull
    durability: Durability
    on_error: OnError
    resume: bool

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            InputError: a setting is none of those that there are.
        """
        for name, known in _CHOICES.items():
            value = getattr(self, name)
            if value not in known:
                raise InputError(f"{name} is {value!r}; expected one of {', '.join(known)}.")
        if self.queue_bytes < 1:
            raise InputError(
                f"queue_bytes is {self.queue_bytes}; expected a number of bytes from 1."
            )
        for name, what in (("max_bytes", "bytes"), ("num_steps", "steps")):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; expected a number of {what} from 1, or None.")
