"""The state of a run that another process writes: live, stalled, crashed or done.

It is concluded from the process, which holds a lock as long as it lives, and from the run's own
rhythm: a training that has made a step every 0.2 s and none for a minute is stalled.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from torchtap.core.errors import RunError
from torchtap.core.text import clean, count, number
from torchtap.runs.store.layout import (
    ATTEMPT,
    JOURNAL,
    PROGRESS,
    attempts_in,
    is_attempt,
    ranks_in,
    read_json,
)
from torchtap.runs.store.lock import is_being_written
from torchtap.runs.store.training_progress import TrainingProgress, read_progress

LIVE, STALLED, CRASHED, DONE = "live", "stalled", "crashed", "done"
_WORST_FIRST = (CRASHED, STALLED, LIVE, DONE)
_LEAST = 10.0
"""Seconds of silence that never mean anything."""
_STEPS, _GAPS = 10, 3
"""How many usual steps, and how many times the longest gap so far, a training may be silent."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run, or of one rank of it.

    Attributes:
        name: ``live``, ``stalled``, ``crashed`` or ``done``.
        reason: how that is known, as the end of a sentence.
        step: the step that runs, or ran last; ``None`` where that is not known.
        silence: seconds since the last step ended; ``None`` where none has.
        usual: seconds from the end of one step to that of the next, in most cases.
    """

    name: str
    reason: str = ""
    step: int | None = None
    silence: float | None = None
    usual: float | None = None

    @property
    def is_over(self) -> bool:
        """Return whether nothing more will come."""
        return self.name in (CRASHED, DONE)


def state_of(path: Path, *, times: Sequence[float] = (), now: float | None = None) -> RunState:
    """Conclude the state of a run: of a file, a folder, or of one rank or attempt in it.

    Of several ranks it is that of the worst: a training of which one process has crashed goes on no
    further. Of several attempts of a rank the last one counts.

    Args:
        path: of the run.
        times: when its steps ended, in seconds since 1970, as in ``run.times``; where none are
            given the rhythm is the average of all steps.
        now: in the same seconds.

    Raises:
        FileNotFoundError: there is nothing.
    """
    now = time.time() if now is None else now
    if not path.is_dir():
        path.stat()
        return RunState(DONE, "a file is written when all is over")
    ranks = {0: path} if is_attempt(path) or attempts_in(path) else ranks_in(path)
    by_rank = {}
    for rank, folder in ranks.items():
        attempts = {0: folder} if is_attempt(folder) else attempts_in(folder)
        if attempts:
            by_rank[rank] = state_of_attempt(attempts[max(attempts)], times=times, now=now)
    if not by_rank:
        return RunState(LIVE, "no process has begun to write")
    return _of_ranks(by_rank)


def state_of_attempt(folder: Path, *, times: Sequence[float] = (), now: float) -> RunState:
    """Conclude the state of one attempt; see :func:`state_of`."""
    facts, progress = _facts_of(folder), read_progress(folder / PROGRESS)
    step = None if progress is None else progress.running
    if facts.get("state") == "closed":
        return RunState(DONE, "it was closed", step)
    if facts.get("state") == "failed":
        return RunState(CRASHED, clean(str(facts.get("why", "writing it failed"))), step)
    silence, usual, longest = _rhythm(folder, facts, progress, times, now)
    patience = max(_LEAST, _STEPS * (usual or 0.0), _GAPS * longest)
    is_silent = silence is not None and silence > patience
    is_written = is_being_written(folder)
    if not is_written and facts.get("locked", True) and not _has_just_begun(folder, now):
        return RunState(CRASHED, "its process ended without closing it", step, silence, usual)
    if is_silent and usual is not None:
        known = "its process lives" if is_written else "of its process nothing is known"
        said = f"no step ended in {seconds(silence)}, and one takes {seconds(usual)}; {known}"
        return RunState(STALLED, said, step, silence, usual)
    said = "" if silence is not None else "no step has ended yet"
    return RunState(LIVE, said, step, silence, usual)


def seconds(value: float | None) -> str:
    """Return a span of time, as a person says it.

    Example:
        >>> seconds(0.012), seconds(3.21), seconds(75), seconds(7300)
        ('12 ms', '3.2 s', '1 min 15 s', '2 h 1 min')
    """
    if value is None:
        return "?"
    if value < 1:
        return f"{number(float(f'{1000 * value:.2g}'))} ms"
    if value < 60:
        return f"{value:.2g} s"
    minutes, rest = divmod(int(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{count(minutes // 60)} h {minutes % 60} min"


def _of_ranks(found: Mapping[int, RunState]) -> RunState:
    worst = min(found, key=lambda rank: _WORST_FIRST.index(found[rank].name))
    if len(found) == 1:
        return found[worst]
    one = found[worst]
    others = sum(state.name == one.name for state in found.values())
    which = "all ranks" if others == len(found) else f"rank {worst}"
    reason = f"{which}: {one.reason}" if one.reason else ""
    return RunState(one.name, reason, one.step, one.silence, one.usual)


def _facts_of(folder: Path) -> dict[str, Any]:
    try:
        return read_json(folder / ATTEMPT)
    except (OSError, RunError):
        return {}


def _rhythm(
    folder: Path,
    facts: Mapping[str, Any],
    progress: TrainingProgress | None,
    times: Sequence[float],
    now: float,
) -> tuple[float | None, float | None, float]:
    """Return seconds since the last step ended, those that a step takes, and the longest gap."""
    if progress is None or progress.began < 0:
        return None, None, 0.0
    last = (folder / PROGRESS).stat().st_mtime  # It is written whenever a step is closed.
    gaps = [after - before for before, after in pairwise(times)]
    if gaps:
        return now - last, median(gaps[-100:]), max(gaps)
    many = progress.running - progress.began
    opened = facts.get("changed", last)
    usual = (last - opened) / many if many > 0 and last > opened else None
    return now - last, usual, 0.0


def _has_just_begun(folder: Path, now: float) -> bool:
    """Return whether its process has not come to its lock yet."""
    has_file = (folder / JOURNAL).exists() and (folder / ATTEMPT).exists()
    return not has_file and now - folder.stat().st_mtime < _LEAST
