"""Facts about a commit beside its values. Knows nothing of torch and of pyarrow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchtap.core.errors import RunError
from torchtap.runs.store.layout import JOURNAL


@dataclass(frozen=True, slots=True)
class Commit:
    """The facts about a commit beside its values.

    Attributes:
        number: from 0, within the attempt.
        step: to which the values belong.
        time: when, in seconds since 1970, UTC.
        is_closed: whether the commit ends its step. ``False`` where the step was still running: at
            ``w.sync()``, or when a watch ends within a step.
        ids: of the samples of the step.
        labels: of the user's, name to value.
        scalars: numbers that were logged.
        dropped: site -> how many values were dropped, and how many bytes they had.
    """

    number: int
    step: int
    time: float
    is_closed: bool = True
    ids: Sequence[Any] = ()
    labels: dict[str, Any] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    dropped: dict[str, tuple[int, int]] = field(default_factory=dict)

    def as_json(self) -> bytes:
        """Return the commit as it stands in the journal, without its empty parts."""
        body: dict[str, Any] = {"commit": self.number, "step": self.step, "time": self.time}
        body["is_closed"] = self.is_closed
        for name in ("ids", "labels", "scalars", "dropped"):
            if value := getattr(self, name):
                body[name] = value if isinstance(value, dict) else list(value)
        return json.dumps(body).encode("ascii")

    @staticmethod
    def of_json(text: bytes | str) -> Commit:
        """Read what :meth:`as_json` wrote.

        Raises:
            RunError: it is something else.
        """
        try:
            body = json.loads(text)
            dropped = {
                str(site): (int(number), int(nbytes))
                for site, (number, nbytes) in body.get("dropped", {}).items()
            }
            return Commit(
                number=int(body["commit"]),
                step=int(body["step"]),
                time=float(body["time"]),
                is_closed=bool(body["is_closed"]),
                ids=list(body.get("ids", ())),
                labels=dict(body.get("labels", {})),
                scalars={str(name): float(one) for name, one in body.get("scalars", {}).items()},
                dropped=dropped,
            )
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise RunError(f"A commit of the journal cannot be read: {error}.") from error


class CommitStream:
    """The commits of an attempt, read from where the journal ended the last time.

    Args:
        folder: of the attempt.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL
        self._end = 0

    def read(self) -> Iterator[Commit]:
        """Yield what was committed since the last call; what is damaged is passed over."""
        from torchtap.runs.store.journal import read_journal
        from torchtap.runs.store.streams import Found

        with suppress(FileNotFoundError):
            for one in read_journal(self._path, self._end):
                if isinstance(one, Found):
                    self._end = one.end
                    with suppress(RunError):
                        yield Commit.of_json(one.info)
