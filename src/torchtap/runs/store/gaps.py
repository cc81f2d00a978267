"""Steps that a training came past and that no attempt of a rank has. Knows nothing of torch.

The thread that writes lags the training, so a process that is killed loses its last steps. A
training that goes on from a checkpoint of a later step never records them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm
from typing import NamedTuple

from torchtap.core.record import said_steps
from torchtap.runs.store.attempt_reader import AttemptReader
from torchtap.runs.store.measured_rows import Span

Attempts = Mapping[int, AttemptReader]
ValidUntil = Mapping[int, int | None]
"""Attempt -> the first step in which a later one counts; ``None`` for none."""


class Gap(NamedTuple):
    """Steps, or a part of one, that are missing after the last step that an attempt has.

    Attributes:
        attempt: its number.
        first: the first step that is missing.
        reason: what is said of it.
        is_lost: whether it was recorded and lost with its process, for good: a later attempt
            begins after it. Steps that are missing at the end may be recorded again; steps that a
            closed attempt lacks were never recorded.
    """

    attempt: int
    first: int
    reason: str
    is_lost: bool


def gaps_of(attempts: Attempts, valid_until: ValidUntil) -> list[Gap]:
    """Return the steps that are missing after the last commit of each attempt.

    Each gap ends before the step at which a later attempt begins. After an attempt that no later
    one follows, it ends before the step to which its training had come.

    Args:
        attempts: of one rank.
        valid_until: see :data:`ValidUntil`.
    """
    gaps = []
    for number, one in attempts.items():
        if one.is_growing:
            continue
        until = valid_until[number]
        following = None if until is None else _least([until, *_began_after(number, attempts)])
        gaps += [
            _gap_behind(number, one, until, following),
            _half_step(number, one, until),
        ]
    return [gap for gap in gaps if gap is not None]


def _gap_behind(
    number: int, one: AttemptReader, until: int | None, following: int | None
) -> Gap | None:
    """Steps between the last commit of an attempt and the next attempt, or the end.

    Args:
        number: of the attempt.
        one: it.
        until: the first step in which a later attempt counts.
        following: where that one began, which may be before it has anything.
    """
    came = None if one.progress is None else one.progress.running
    last = next((commit.step for commit in one.last_commits(until, 1)), None)
    begins = _begins(one, last)
    has_lost = one.state != "closed" and (_has_uncommitted(one) or one.state == "failed")
    if one.facts.get("values_every", 1) is None and not has_lost:
        return None  # It has statistics alone: see unmeasured.
    end = came if following is None else following
    if end is None or (begins is None and came is None):
        return None
    start = begins or 0
    if came is not None and not has_lost:
        start = max(start, came)  # All steps that were closed are there.
    steps = _wanted(one, range(start, end))
    if not steps:
        return None
    committed = "it committed nothing" if last is None else f"its last commit is of step {last}"
    then = "" if following is None else f"; a later attempt goes on at step {following}"
    if begins is None or one.state == "closed":
        said = f"no attempt has {said_steps(steps)}"
        return Gap(number, steps[0], f"{said}: of attempt {number}, {committed}{then}", False)
    is_killed = one.state == "open"
    advice = ". w.sync() before each checkpoint commits what was recorded" if is_killed else ""
    had_come = "" if came is None else f" had come to step {came} when it ended, and"
    lost = f"{said_steps(steps)} {_are(steps)} lost"
    reason = f"{lost}: attempt {number}{had_come} {committed}{then}{advice}"
    return Gap(number, steps[0], reason, following is not None)


def _has_uncommitted(one: AttemptReader) -> bool:
    """Return whether the training handed over commits that are not there."""
    return one.progress is not None and one.progress.num_handed > one.num_commits


def _half_step(number: int, one: AttemptReader, until: int | None) -> Gap | None:
    """Return a step of which a flush committed a part, in an attempt that was not closed."""
    last = next(iter(one.last_commits(until, 1)), None)
    if last is None or last.is_closed or one.state == "closed":
        return None
    reason = (
        f"step {last.step} was running when it was last committed, and attempt {number} was not "
        f"closed: what came of it later, if anything, is lost"
    )
    return Gap(number, last.step, reason, False)


# ---------------------------------------------------------------------- statistics


def unmeasured(
    attempts: Attempts, valid_until: ValidUntil, spans: Mapping[int, Span | None]
) -> list[Gap]:
    """Steps after the last row of each attempt, of which the statistics are missing.

    Args:
        attempts: of one rank.
        valid_until: see :data:`ValidUntil`.
        spans: of each attempt, the steps of which it has rows, if it was not closed.
    """
    gaps = []
    for number, one in attempts.items():
        if not one.facts.get("measures") or one.is_growing:
            continue
        later = [_first_measured(attempts[key], spans.get(key)) for key in attempts if key > number]
        until = _least([valid_until[number], *(first for first in later if first is not None)])
        following = None if until is None else _least([until, *_began_after(number, attempts)])
        gaps.append(_unmeasured_behind(number, one, spans.get(number), following))
    return [gap for gap in gaps if gap is not None]


def partial_statistics(
    attempts: Attempts, valid_until: ValidUntil, spans: Mapping[int, Span | None]
) -> list[Gap]:
    """Steps of which the numbers alone are there: an attempt writes the rest when it is closed.

    Args:
        attempts: of one rank.
        valid_until: see :data:`ValidUntil`.
        spans: as of :func:`unmeasured`.
    """
    gaps = []
    for number, one in attempts.items():
        kept, span = one.facts.get("until_the_end"), spans.get(number)
        if not kept or span is None or one.is_growing or "series" in one.facts:
            continue
        later = [_first_measured(attempts[key], spans.get(key)) for key in attempts if key > number]
        until = _least([valid_until[number], *(first for first in later if first is not None)])
        every = one.facts.get("every")
        end = span.last + 1 if until is None else min(span.last + 1, until)
        steps = _multiples(range(span.first, end), every if isinstance(every, int) else 1)
        if steps:
            said = f"of {said_steps(steps)} there are the numbers, and not {' and '.join(kept)}"
            gaps.append(Gap(number, steps[0], f"attempt {number} was not closed: {said}", False))
    return gaps


def _unmeasured_behind(
    number: int, one: AttemptReader, span: Span | None, following: int | None
) -> Gap | None:
    is_sealed, every = "series" in one.facts, one.facts.get("every")
    last = one.facts.get("last_measured") if is_sealed else None if span is None else span.last
    came = _came(one)
    begins, end = _begins(one, last), came if following is None else following
    if is_sealed and (one.facts.get("values_every") is not None or last is None):
        return None  # A closed attempt with values: the gap after these says it.
    if begins is None or end is None:
        return None
    start = max(begins, came or 0) if is_sealed else begins
    steps = _multiples(range(start, end), every if isinstance(every, int) else 1)
    if not steps:
        return None
    if is_sealed:
        said = f"no attempt has statistics of {said_steps(steps)}: those of attempt {number} end"
        return Gap(number, steps[0], f"{said} with step {last}", False)
    after = "" if last is None else f" after step {last}"
    known = "" if isinstance(every, int) else ", as far as these were recorded"
    said = f"its statistics{after} are lost ({said_steps(steps)}{known})"
    reason = f"attempt {number} was not closed: {said}"
    return Gap(number, steps[0], reason, following is not None)


def _first_measured(one: AttemptReader, span: Span | None) -> int | None:
    first = one.facts.get("first_measured")
    return first if isinstance(first, int) else None if span is None else span.first


# ---------------------------------------------------------------------- both


def _begins(one: AttemptReader, last: int | None) -> int | None:
    """Return the first step after all that an attempt has, if it came to any."""
    began = one.first_step if one.progress is None else one.progress.began
    known = [began, None if last is None else last + 1]
    return max((step for step in known if step is not None and step >= 0), default=None)


def _came(one: AttemptReader) -> int | None:
    """The step to which the training of an attempt had come when it ended, as far as is known."""
    if one.progress is not None:
        return one.progress.running
    return next((commit.step + 1 for commit in one.last_commits(None, 1)), None)


def _began_after(number: int, attempts: Attempts) -> list[int]:
    """Return where the later attempts began, of those that say it."""
    later = [one.progress for key, one in attempts.items() if key > number]
    return [one.began for one in later if one is not None and one.began >= 0]


def _wanted(one: AttemptReader, steps: range) -> Sequence[int]:
    """Return the steps that an attempt would have committed, as far as that is known."""
    every, values = one.facts.get("every"), one.facts.get("values_every")
    if not steps or not isinstance(every, int) or not isinstance(values, int):
        return steps
    many = lcm(every, values)
    if any(commit.step % many for commit in one.last_commits(None, 2)):
        return steps  # It commits ids, labels or numbers in between.
    return _multiples(steps, many)


def _multiples(steps: range, many: int) -> range:
    return range(-(-steps.start // many) * many, steps.stop, many)


def _least(found: Sequence[int | None]) -> int | None:
    return min((one for one in found if one is not None), default=None)


def _are(steps: Sequence[int]) -> str:
    return "is" if len(steps) == 1 else "are"
