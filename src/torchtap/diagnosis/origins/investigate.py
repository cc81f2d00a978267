"""From a step that is not finite to its origin: by a replay, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from torchtap.core.blame import is_own_fault, own_fault
from torchtap.core.distributed import is_distributed, is_part_of_flat, num_ranks, own_rank
from torchtap.core.equality import same
from torchtap.core.module_paths import type_names
from torchtap.core.source_files import hash_of
from torchtap.core.text import plural
from torchtap.diagnosis.origins.bad_samples import bad_samples
from torchtap.diagnosis.origins.kept_calls import Kept, KeptCall
from torchtap.diagnosis.origins.origin import BACKWARD, FORWARD, OPTIMIZER, PARAMETER, Origin
from torchtap.diagnosis.origins.replay_kept_calls import Replay
from torchtap.diagnosis.origins.values import badness, first_bad, shown, tensors_of

_SHARDED = (
    "The model is sharded by FullyShardedDataParallel, which gathers weights for its own forward "
    "alone, so it is not replayed: tt.locate(model, step, *batch), called by all ranks, runs the "
    "whole step."
)
_APART = (
    "The model is sharded over several ranks, which did not call it equally often in this step, so "
    "they cannot replay it together."
)
_TOGETHER_CLEAN = "The replay on all ranks together is finite."
_NO_CALL = "No call of the model was seen in this step, so there is nothing to replay."
_UNSEEN = (
    "or the model read a value that changed since without being counted: an input refilled through "
    ".data or numpy, an attribute that is no buffer."
)
_ALTERED = (
    "Replayed twice, the gradients are finite, and they are not as the optimizer begins. Probably "
    "they were changed after the backward: clipping, or an all-reduce. If nothing in the program "
    f"does, it was hardware, a race, {_UNSEEN}"
)
_WRITTEN = (
    "Each replay gives the same finite gradients. Probably something wrote into them after the "
    "backward: clipping, an all-reduce, a hook. If nothing in the program does, it was hardware, a "
    f"race, {_UNSEEN}"
)
_NOT_REPRODUCIBLE = (
    "Replayed again and again, everything is finite, and the gradients differ from each other. "
    f"Not reproducible: hardware or a race; {_UNSEEN}"
)
_OVERWRITTEN = (
    "The replay is finite, but an argument or a buffer of the model was overwritten before the "
    "replay: the step ran on other values, so the origin cannot be found from it."
)
_FOREIGN = (
    "The replay of this model is finite, and so are the gradients of its parameters. One that its "
    "optimizer holds beside them is not: it belongs to no part of this model."
)
_SUM = "Each backward of the step is finite, the sum of their gradients is not."
_UPDATED = "It was replayed with the weights after the update of its optimizer."


@dataclass(frozen=True, slots=True)
class Evidence:
    """The facts that a guard saw.

    Attributes:
        params: whose gradients were looked at.
        loss: the loss that is not finite, in words; empty where it was the gradients.
        is_updated: whether an optimizer has changed the weights since the calls.
        was_finite: whether all was finite when the optimizer began its step before.
        ids: of the samples of the step.
        num_dropped: calls of the step that are no longer kept, as there were too many.
        are_equal: whether all ranks called the model equally often, and can replay it together.
    """

    params: Sequence[Tensor]
    loss: str = ""
    is_updated: bool = False
    was_finite: bool = False
    ids: Sequence[int | str] = ()
    num_dropped: int = 0
    are_equal: bool = True


def investigate(
    model: nn.Module, kept: Kept, calls: Sequence[KeptCall], evidence: Evidence
) -> Origin | None:
    """Return the origin of what is not finite in a step.

    Args:
        model: any module.
        kept: of the guard.
        calls: of the step.
        evidence: what was seen.

    Returns:
        ``None`` where the replay is clean: :func:`when_clean` says what that means.
    """
    reason = _why_not(kept, calls, evidence)
    if reason:
        return _unexplained(evidence, reason)
    try:
        replay = Replay(model, kept, calls)
        found, _ = replay.trace()
        return None if found is None else _complete(found, replay, evidence)
    except Exception as error:  # noqa: BLE001 - the training is told, and goes on as it is asked to
        said = own_fault(error) if is_own_fault(error) else f"{type(error).__name__}: {error}"
        return _unexplained(evidence, f"The replay failed with {said}")


def when_clean(
    model: nn.Module, kept: Kept, calls: Sequence[KeptCall], evidence: Evidence
) -> Origin:
    """Return what it means that the replay of a step that was not finite is finite."""
    if any(call.was_overwritten for call in calls):
        return _unexplained(evidence, _OVERWRITTEN)
    if evidence.num_dropped:
        note = (
            f"The replay of the last {plural(len(calls), 'call')} of the model in this step is "
            f"finite. {plural(evidence.num_dropped, 'earlier call')} of the step, of micro "
            f"batches, cannot be replayed: no more are kept."
        )
        return _unexplained(evidence, note)
    if evidence.loss:
        note = (
            f"The {evidence.loss} is not finite, but the model's outputs are: it was made outside "
            f"of the model, by the loss itself."
        )
        return replace(_unexplained(evidence, note), phase=FORWARD)
    replay = Replay(model, kept, calls)
    if replay.needs_all_ranks:
        return _unexplained(evidence, _TOGETHER_CLEAN)
    found, sums = replay.trace()
    if found is not None:
        return _complete(found, replay, evidence)
    if any(map(badness, sums)):
        return _unexplained(evidence, _SUM)
    if not _own_is_bad(model, calls, evidence):
        return _unexplained(evidence, _FOREIGN)
    gradients = [param.grad for param in evidence.params if param.grad is not None]
    is_scaled = all(not bool(torch.isfinite(one).any()) for one in tensors_of(gradients))
    if is_scaled or num_ranks() > 1:
        return replace(_unexplained(evidence, _ALTERED), phase=OPTIMIZER)
    again, others = replay.trace()
    if again is None and len(sums) == len(others) and all(map(same, sums, others)):
        return replace(_unexplained(evidence, _WRITTEN), phase=OPTIMIZER)
    return _unexplained(evidence, _NOT_REPRODUCIBLE)


def _own_is_bad(model: nn.Module, calls: Sequence[KeptCall], evidence: Evidence) -> bool:
    """Return whether gradients of the model's own parameters, or of all it has, are not finite."""
    bad = {id(param) for param in evidence.params if param.grad is not None and badness(param.grad)}
    is_lent = any(call.lent is not None for call in calls)  # Made of others by functional_call.
    return not bad or is_lent or any(id(parameter) in bad for parameter in model.parameters())


def _why_not(kept: Kept, calls: Sequence[KeptCall], evidence: Evidence) -> str:
    if not calls:
        return _NO_CALL
    held = [param for one in kept.every for param in one.parameters(recurse=False)]
    is_wrapped = any("FullyShardedDataParallel" in type_names(one) for one in kept.every)
    if is_wrapped or any(map(is_part_of_flat, held)):
        return _SHARDED
    if any(map(is_distributed, held)) and not evidence.are_equal:
        return _APART
    return ""


def _unexplained(evidence: Evidence, note: str) -> Origin:
    """Return an origin that says which gradient is not finite, and why no more is known."""
    gradients = [param.grad for param in evidence.params if param.grad is not None]
    bad = next((one for one in tensors_of(gradients) if badness(one)), None)
    if bad is None:
        return Origin(BACKWARD, note=note)
    index, value = first_bad(bad)
    return Origin(BACKWARD, index=index, value=value, inputs=f"gradient {shown(bad)}", note=note)


def _complete(found: Origin, replay: Replay, evidence: Evidence) -> Origin:
    """Add the samples, the cause in an earlier step, and what is to be known of the replay."""
    notes = [found.note]
    if evidence.is_updated:
        notes.append(_UPDATED)
    if any(call.was_overwritten for call in replay.calls):
        notes.append("An argument or a buffer of the model was overwritten before the replay.")
    samples = bad_samples(found, replay, evidence.ids, num_dropped=evidence.num_dropped)
    is_outside = found.module is None and not found.operation
    return replace(
        found,
        phase=FORWARD if evidence.loss and is_outside else found.phase,
        rows=samples.rows,
        ids=samples.ids,
        num_samples=samples.num,
        micro_batch=samples.micro_batch,
        cause=_cause(found, evidence),
        note=" ".join(note for note in notes if note),
        rank=own_rank()[0] if num_ranks() else None,
        file_hash=hash_of(found.file) if found.file else "",
    )


def _cause(found: Origin, evidence: Evidence) -> Origin | None:
    if found.phase != PARAMETER or not evidence.was_finite:
        return found.cause
    note = "The gradients of the step before were finite as its optimizer began: its update did it."
    return Origin(OPTIMIZER, index=found.index, value=found.value, note=note)
