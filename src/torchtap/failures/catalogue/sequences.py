"""Sequences: states without a batch, and lengths of packed sequences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.failure import Failure
from torchtap.failures.situation_row import Situation, SituationRow


def _state(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_batched = found["kind"].startswith("batched")
    is_first = getattr(failure.module, "batch_first", False)
    return {
        "is_unbatched": not is_batched,
        "is_batched": is_batched,
        "at": 0 if is_first else 1,
    }


def _lengths(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.operand("lengths").value
    return {"is_elsewhere": isinstance(value, Tensor) and value.device.type != "cpu"}


def _empty(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.operand("lengths").value
    is_readable = isinstance(value, Tensor) and value.device.type == "cpu" and value.dim() == 1
    none = (value <= 0).nonzero().flatten().tolist() if is_readable else []
    return {"which": f" {', '.join(map(str, none[:8]))}" if none else ""}


SITUATIONS: dict[str, Situation] = {
    "dimensions of a state": SituationRow(
        "{module} was given an input that is {kind}, and {what} of {given}: a state has a batch "
        "where the input has one.",
        (
            "is_unbatched",
            "Give the input a batch of one, with .unsqueeze({at}); the output then has one, too.",
        ),
        ("is_unbatched", "Or take the batch out of each state, with .squeeze(1)."),
        ("is_batched", "Give each state a batch: [layers * directions, batch, hidden]."),
        facts=_state,
    ),
    "lengths in no order": SituationRow(
        "pack_padded_sequence was given lengths that do not fall from the longest to the shortest.",
        "Give enforce_sorted=False: PyTorch sorts them, and a module that is given the packed "
        "sequence hands its outputs back in your order.",
        about="lengths",
    ),
    "lengths elsewhere": SituationRow(
        "pack_padded_sequence takes lengths as a list, or as an int64 tensor of one dimension on "
        "the CPU, and got {given}.",
        ("is_elsewhere", "Bring them to the CPU: {name_it}.cpu()."),
        "Give one whole number for each sample: a list, or an int64 tensor [batch].",
        about="lengths",
        facts=_lengths,
    ),
    "empty sequence": SituationRow(
        "pack_padded_sequence was given a sequence without elements: a length is 0 at{which}.",
        "Leave samples without elements out of the batch, before they are packed.",
        about="lengths",
        facts=_empty,
    ),
}
