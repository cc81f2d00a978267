"""Times, sample ids and labels of the steps of all ranks, as those of one run."""

from __future__ import annotations

from collections.abc import Iterable

from torchtap.runs.step_notes import StepNotes


def merged_notes(ranks: Iterable[StepNotes]) -> StepNotes:
    """Merge the notes of all ranks, in their order: ids one after the other, the latest time.

    Ranks that name the very same samples have worked on the same part of the batch, as those of
    tensor parallelism do; their ids are taken once. The last rank's labels count where they differ.
    """
    merged = StepNotes()
    seen: dict[int, set[tuple[int | str, ...]]] = {}
    ends: dict[int, float] = {}
    for notes in ranks:
        for step, time in zip(*notes.times, strict=True):
            ids, labels = notes.of(step)
            known = seen.setdefault(step, set())
            is_new = tuple(ids) not in known
            known.add(tuple(ids))
            ends[step] = max(ends.get(step, time), time)
            merged.note(step, ends[step], ids if is_new else (), labels)
    return merged
