"""Check a folder: every checksum is compared. Knows nothing of torch."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from torchtap.core.errors import RunError
from torchtap.core.printed import Printed
from torchtap.core.printed_page import BLANK, Line, Page, Part
from torchtap.core.text import clean, plural, size
from torchtap.runs.store.attempt_reader import AttemptReader
from torchtap.runs.store.checksum import crc32, crc32_of_file
from torchtap.runs.store.folder_inventory import attempts_by_rank
from torchtap.runs.store.gaps import gaps_of, partial_statistics, unmeasured
from torchtap.runs.store.history import valid_until_of
from torchtap.runs.store.index import DTYPES, Index
from torchtap.runs.store.index_file import read_index
from torchtap.runs.store.layout import (
    INDEX,
    JOURNAL,
    PROGRESS,
    SEALED_STATISTICS,
    SERIES,
    SERIES_DAMAGED,
    value_path,
)
from torchtap.runs.store.measured_rows import Span, look_through, measured_steps

_CHUNK = 4 << 20


@dataclass(slots=True)
class AttemptState:
    """One attempt, looked through.

    Attributes:
        folder: of it.
        state: ``closed``, ``failed``, ``damaged``, ``growing`` (a living process writes it),
            ``ended`` (its process ended without closing it, which loses nothing that was
            committed), or ``empty`` (its process ended before it wrote anything).
        num_steps: how many steps were committed with values.
        num_measured: how many steps have statistics.
        num_values: how many values were committed and can be read.
        nbytes: of these values.
        problems: what is not whole.
        notes: what else is to be known of it, such as steps that nobody recorded.
    """

    folder: Path
    state: str
    num_steps: int = 0
    num_measured: int = 0
    num_values: int = 0
    nbytes: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Diagnosis(Printed):
    """The result of :func:`examine`.

    Attributes:
        attempts: one after the other, by rank.
    """

    attempts: tuple[AttemptState, ...]

    @property
    def is_whole(self) -> bool:
        """Return whether all that was committed is there, to the bit, with no lost step."""
        return not any(attempt.problems for attempt in self.attempts)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "is_whole": self.is_whole,
            "attempts": [
                {
                    "folder": str(attempt.folder),
                    "state": attempt.state,
                    "num_steps": attempt.num_steps,
                    "num_measured": attempt.num_measured,
                    "num_values": attempt.num_values,
                    "nbytes": attempt.nbytes,
                    "problems": attempt.problems,
                    "notes": attempt.notes,
                }
                for attempt in self.attempts
            ],
        }

    def _page(self) -> Page:
        total = "Whole: every checksum is right." if self.is_whole else "Not whole."
        parts: list[Part] = [Line(total, "good" if self.is_whole else "bad")]
        for attempt in self.attempts:
            name = "/".join(attempt.folder.parts[-2:])
            what = f"{_said_steps(attempt)}, {plural(attempt.num_values, 'value')}"
            parts += [BLANK, Line(f"{name}: {attempt.state}, {what}, {size(attempt.nbytes)}")]
            parts += [Line(f"  {clean(why)}", "bad") for why in attempt.problems]
            parts += [Line(f"  {clean(note)}") for note in attempt.notes]
        return Page(*parts)


def _said_steps(one: AttemptState) -> str:
    """Return ``3 steps``, or where they are others ``statistics of 4 steps``."""
    steps, measured = plural(one.num_steps, "step"), plural(one.num_measured, "step")
    if one.num_measured in (0, one.num_steps):
        return steps
    said = f"statistics of {measured}"
    return f"{steps}, {said}" if one.num_steps else said


def examine(path: Path, told: Callable[[int], None] = lambda nbytes: None) -> Diagnosis:
    """Look through a run in a folder.

    Args:
        path: the folder of the run, of a rank or of an attempt.
        told: is told how many bytes were looked at since the last time.

    Raises:
        RunError: it is no run.
    """
    ranks = [_examined_rank(attempts, told) for attempts in attempts_by_rank(path).values()]
    return Diagnosis(tuple(state for states in ranks for state in states))


def _examined_rank(
    attempts: dict[int, AttemptReader], told: Callable[[int], None]
) -> list[AttemptState]:
    """Return the attempts of a rank, and what is missing between them."""
    states = {number: _examined(one, told) for number, one in attempts.items()}
    spans: dict[int, Span | None] = {}
    for number, one in attempts.items():
        if "series" not in one.facts:
            spans[number], damaged = look_through(one.folder)
            states[number].problems += damaged
        states[number].num_measured = len(measured_steps(one.folder))
    valid_until = valid_until_of(attempts)
    measured = (
        *unmeasured(attempts, valid_until, spans),
        *partial_statistics(attempts, valid_until, spans),
    )
    for gap in (*gaps_of(attempts, valid_until), *measured):
        state = states[gap.attempt]
        (state.problems if gap.is_lost else state.notes).append(gap.reason)
    return list(states.values())


def _examined(one: AttemptReader, told: Callable[[int], None]) -> AttemptState:
    index = one.index
    state = one.state
    if state == "open":
        state = "growing" if one.is_growing else "ended"
    nbytes, steps = int(np.asarray(index.columns["nbytes"]).sum()), np.unique(index.columns["step"])
    state_of_attempt = AttemptState(
        folder=one.folder,
        state=state,
        num_steps=len(steps),
        num_measured=0,
        num_values=len(index),
        nbytes=nbytes,
        problems=list(one.lost),
    )
    if "why" in one.facts:
        state_of_attempt.problems.append(str(one.facts["why"]))
    if one.progress is None and "every" in one.facts:
        state_of_attempt.problems.append(
            f"{PROGRESS} is damaged: steps that were lost are not known"
        )
    committed = 0 if one.progress is None else one.progress.num_committed
    if committed > one.num_commits:
        many = plural(committed - one.num_commits, "commit")
        state_of_attempt.problems.append(f"{JOURNAL} lacks {many} that stood in it")
    if state == "closed":
        state_of_attempt.problems += _wrong_index(one)
        state_of_attempt.problems += _wrong_series(one)
        state_of_attempt.problems += _wrong_headers(one)
    state_of_attempt.problems += _wrong_values(one.folder, index, told)
    state_of_attempt.problems = list(dict.fromkeys(state_of_attempt.problems))
    return state_of_attempt


# ---------------------------------------------------------------------- values


def _wrong_values(folder: Path, index: Index, told: Callable[[int], None]) -> Iterator[str]:
    columns = {name: np.asarray(one) for name, one in index.columns.items()}
    tables = index.tables
    for number, name in enumerate(tables.file):
        places = np.flatnonzero(columns["file"] == number)
        places = places[np.argsort(columns["offset"][places])]
        try:
            file = os.open(value_path(folder, name), os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            yield f"{name} cannot be read: {error.strerror}"
            continue
        try:
            for place in places.tolist():
                where, nbytes = int(columns["offset"][place]), int(columns["nbytes"][place])
                told(nbytes)
                if _checksum(file, where, nbytes) != int(columns["crc32"][place]):
                    site = tables.site[columns["site"][place]]
                    yield (
                        f"the value of {site} in step {columns['step'][place]}, call "
                        f"{columns['call'][place]}, is damaged in {name}"
                    )
        finally:
            os.close(file)


def _checksum(file: int, offset: int, nbytes: int) -> int:
    found, end = 0, offset + nbytes
    while offset < end:
        data = os.pread(file, min(_CHUNK, end - offset), offset)
        if not data:
            return -1
        found, offset = crc32(data, found), offset + len(data)
    return found


# ---------------------------------------------------------------------- what stands beside them


def _wrong_index(one: AttemptReader) -> Iterator[str]:
    """Report whether index and journal are damaged, missing, or differ."""
    from torchtap.runs.store.journal import index_of, read_journal
    from torchtap.runs.store.streams import Damage

    sealed = read_index(one.folder / INDEX, one.facts.get("index"))
    if sealed is None:
        yield f"{INDEX} is damaged; the journal is read in place of it"
    batches = []
    try:
        for entry in read_journal(one.folder / JOURNAL):
            if isinstance(entry, Damage):
                yield f"{JOURNAL} is damaged from byte {entry.start:,} to {entry.end:,}"
            else:
                batches.append(entry.batch)
    except FileNotFoundError:
        yield f"{JOURNAL} is missing; the index is read in place of it"
        return
    try:
        journal = index_of(batches)
    except RunError as error:
        yield str(error)
        return
    if sealed is not None and not _are_same(sealed.entries, journal):
        yield f"{INDEX} and {JOURNAL} do not say the same"


def _are_same(one: Index, two: Index) -> bool:
    return all(np.array_equal(one.columns[name], two.columns[name]) for name in DTYPES) and list(
        one.tables.items()
    ) == list(two.tables.items())


def _wrong_series(one: AttemptReader) -> Iterator[str]:
    """Report damage of what was measured, and of the table of it that others read."""
    if not _is_as_written(one, SERIES, "series"):
        yield SERIES_DAMAGED
    if not _is_as_written(one, SEALED_STATISTICS, "statistics"):
        yield f"{SEALED_STATISTICS} is damaged; torchtap reads {SERIES} in place of it"


def _is_as_written(one: AttemptReader, name: str, fact: str) -> bool:
    expected = one.facts.get(fact)  # None of earlier versions, or where nothing was measured.
    try:
        return expected is None or crc32_of_file(one.folder / name) == expected
    except OSError:
        return False


def _wrong_headers(one: AttemptReader) -> Iterator[str]:
    """Lanes of a closed attempt that others could not read as safetensors."""
    for name in one.index.tables.file:
        path = value_path(one.folder, name)
        if path.suffix == ".safetensors" and not _is_safetensors(path):
            yield f"{name} has a header that is not right; its values are read all the same"


def _is_safetensors(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            length = struct.unpack("<Q", stream.read(8))[0]
            header = json.loads(stream.read(min(length, _CHUNK)))
            nbytes = os.fstat(stream.fileno()).st_size
        (entry,) = (entry for name, entry in header.items() if name != "__metadata__")
        return bool(entry["data_offsets"][1] == nbytes - 8 - length)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error):
        return False
