"""The samples of a guarded step that make something not finite, in whichever batch of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtap.diagnosis.origins.kept_calls import KeptCall
from torchtap.diagnosis.origins.nonfinite_rows import bad_rows, num_samples
from torchtap.diagnosis.origins.origin import INPUT, OPTIMIZER, PARAMETER, Origin
from torchtap.diagnosis.origins.replay_kept_calls import Cut, Replay
from torchtap.diagnosis.origins.values import tensors_of

Ids = Sequence[int | str]


@dataclass(frozen=True, slots=True)
class BadSamples:
    """The samples by which a step is not finite.

    Attributes:
        rows: of their batch; none where that cannot be told.
        ids: of these, where they are known.
        num: of all samples of the batch; 0 where it is not known.
        micro_batch: number of the batch in the step; ``None`` where the step has one.
    """

    rows: tuple[int, ...] = ()
    ids: tuple[int | str, ...] = ()
    num: int = 0
    micro_batch: int | None = None


def bad_samples(found: Origin, replay: Replay, ids: Ids, *, num_dropped: int = 0) -> BadSamples:
    """Find the batch in which an origin was made, and the samples of it that do it alone.

    Args:
        found: by a replay of all calls of the step; ``micro_batch`` is the number of one of them.
        replay: of these calls.
        ids: of the samples of the step, in the order of its batches.
        num_dropped: calls of the step that came before these.
    """
    place = found.micro_batch
    if place is None or found.phase in (PARAMETER, OPTIMIZER) or replay.needs_all_ranks:
        return BadSamples()
    bad = replay.calls[place]
    batches = [call for call in replay.calls if call.gradients or call is bad]
    at = batches.index(bad)
    rows = _rows(found, replay, place)
    own = _ids_of(at, [_num_samples(batch) for batch in batches], ids, is_all=not num_dropped)
    known = tuple(own[row] for row in rows if row < len(own))
    return BadSamples(
        rows,
        known if len(known) == len(rows) else (),
        _num_samples(bad),
        num_dropped + at if len(batches) + num_dropped > 1 else None,
    )


def _rows(found: Origin, replay: Replay, place: int) -> tuple[int, ...]:
    """Samples in whose replay the same operation is the origin.

    What a sample does not make is no fault of it: a gradient of NaN that the loss sends to all
    samples as one of them is NaN, and a mask of -Inf that is meant.
    """

    def is_clean(cut: Cut) -> bool:
        own, _ = replay.trace(place, cut)
        return own is None or not _is_same(own, found)

    rows = bad_rows(_num_samples(replay.calls[place]), is_clean)
    return rows if rows or found.phase != INPUT or not found.index else found.index[:1]


def _is_same(own: Origin, found: Origin) -> bool:
    """Return whether two origins are one; of fewer samples another kernel may run at its line."""
    if (own.phase, own.module) != (found.phase, found.module):
        return False
    is_one_line = bool(found.file) and (own.file, own.line) == (found.file, found.line)
    return own.operation == found.operation or is_one_line


def _num_samples(call: KeptCall) -> int:
    given = [gradient.gradient for gradient in call.gradients]
    return num_samples(tensors_of((call.args, call.kwargs))) or num_samples(given)


def _ids_of(at: int, nums: Sequence[int], ids: Ids, *, is_all: bool) -> Ids:
    """Return the ids of one batch, where it is certain which they are."""
    if is_all and len(ids) == sum(nums):
        return ids[sum(nums[:at]) : sum(nums[: at + 1])]
    # The model may be called several times for the same samples.
    return ids if all(num == len(ids) for num in nums) else ()
