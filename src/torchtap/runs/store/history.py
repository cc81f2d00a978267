"""The attempts of a rank as one history: which of what they have counts. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from torchtap.core.absence import WHOLE_RUN, Absence
from torchtap.core.record import said_steps
from torchtap.runs.store.attempt_reader import AttemptReader
from torchtap.runs.store.gaps import Attempts, ValidUntil, gaps_of
from torchtap.runs.store.index import Index
from torchtap.runs.store.site_text import site_of


def valid_until_of(attempts: Attempts) -> ValidUntil:
    """Return, for each attempt, the first step that a later attempt replaces; ``None`` if none."""
    if len(attempts) == 1:
        return dict.fromkeys(attempts)
    valid_until: dict[int, int | None] = {}
    until: int | None = None
    for number in sorted(attempts, reverse=True):
        valid_until[number] = until
        first = attempts[number].first_step
        if first is not None:
            until = first if until is None else min(until, first)
    return valid_until


def is_current(step: int, until: int | None) -> bool:
    """Return whether a step of an attempt counts."""
    return until is None or step < until


def current_values(index: Index, until: int | None) -> Index:
    """Return the values of an attempt that count."""
    if until is None:
        return index
    steps = index.columns["step"]
    if not len(steps) or steps.max() < until:
        return index
    numbers = np.asarray(steps)
    if (numbers[1:] < numbers[:-1]).any():
        return index.only(numbers < until)
    return index.head(int(np.searchsorted(numbers, until)))


def absences(attempts: Attempts) -> list[Absence]:
    """Return what was selected and not seen, and what is lost."""
    absent = [Absence(WHOLE_RUN, why) for why in _unfinished(attempts)]
    valid_until = valid_until_of(attempts)
    absent += [Absence(WHOLE_RUN, gap.reason) for gap in gaps_of(attempts, valid_until)]
    for number, one in attempts.items():
        where = f"attempt {number}: " if len(attempts) > 1 else ""
        if len(one.index) or number == max(attempts):  # Else it says nothing of the whole run.
            absent += [Absence(site_of(text), why) for text, why in one.facts.get("absent", ())]
        absent += [Absence(WHOLE_RUN, f"{where}{why}") for why in one.lost]
        if one.facts.get("why"):
            absent.append(Absence(WHOLE_RUN, f"{where}{one.facts['why']}"))
        for text, (many, nbytes, steps) in one.dropped.items():
            reason = (
                f"{where}{many:,} values ({nbytes:,} bytes) were dropped in "
                f"{said_steps(steps)}, because the queue to the disk or its max_bytes were full"
            )
            absent.append(Absence(site_of(text), reason))
        absent += _superseded(number, one, valid_until[number])
    return list(dict.fromkeys(absent))


def _unfinished(attempts: Attempts) -> Iterator[str]:
    """Describe what may be missing at the end, as the last attempt goes on or did not end well."""
    last = attempts[max(attempts)]
    measures = (
        " (statistics a second after their step, at the latest)"
        if last.facts.get("measures")
        else ""
    )
    if last.is_growing:
        yield f"a process is writing it: run.refresh() reads what it commits{measures}"
        return
    if last.state == "empty":
        yield "its process has written nothing so far, or ended before it did"
    if last.state == "open":
        yield "its process ended without closing it: what was not committed is lost"
    wanted = int((last.facts.get("meta") or {}).get("labels", {}).get("num_steps", 0))
    steps = [attempt.index.columns["step"] for attempt in attempts.values() if len(attempt.index)]
    done = max((int(step.max()) + 1 for step in steps), default=0)
    if done < wanted:
        yield (
            f"{done:,} of {wanted:,} batches of the data set were recorded; resume=True (on the "
            f"command line --resume) goes on with the others"
        )


def _superseded(number: int, one: AttemptReader, until: int | None) -> Sequence[Absence]:
    hidden = [] if until is None else one.steps_from(until)
    if not hidden:
        return ()
    reason = (
        f"attempt {number} has {said_steps(hidden)} too, and a later attempt began again at "
        f"step {until}: those of the later one count. tt.open({one.folder.name!r}) in the "
        f"folder of the rank reads the earlier ones"
    )
    return (Absence(WHOLE_RUN, reason),)
