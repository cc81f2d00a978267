"""Losses that refuse their options, lengths and weights."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.failure import Failure
from torchtap.failures.rearrangements import aligned
from torchtap.failures.situation_row import Situation, SituationRow

_REDUCTIONS = {"avg": "mean", "average": "mean", "elementwise_mean": "mean", "None": "none"}


def _reduction(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given = found["given"]
    close = difflib.get_close_matches(given, ["mean", "sum", "none"], n=1, cutoff=0.4)
    return {"meant": _REDUCTIONS.get(given, next(iter(close), ""))}


def _margin(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    target, one = failure.operand("target").value, failure.operand("input1").value
    shapes = [one.shape if isinstance(one, Tensor) else None for one in (target, one)]
    is_column = None not in shapes and shapes[0][:-1] == shapes[1] and shapes[0][-1:] == (1,)  # type: ignore[index]
    return {"is_column": is_column}


def _weight(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    wanted = [int(one) for one in re.findall(r"\d+", found["wanted"])]
    one = failure.operand("weight")
    shape = list(one.value.shape) if isinstance(one.value, Tensor) else []
    return {
        "ways": tuple(aligned(failure.name_of(one), shape, "the input", wanted) if shape else ()),
        "last": wanted[-1] if wanted else 1,
    }


def _classes(failure: Failure) -> int:
    value = failure.operand("log_probs").value
    return value.shape[-1] if isinstance(value, Tensor) and value.dim() else 1


def _lengths(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    scores, lengths = failure.operand("log_probs"), failure.operand(f"{found['which']}_lengths")
    value, given = scores.value, lengths.value
    is_known = isinstance(value, Tensor) and value.dim() == 3 and isinstance(given, Tensor)
    shape = tuple(value.shape) if is_known else ("time", "batch", "classes")
    count = given.numel() if is_known else "others"
    return {
        "scores": failure.name_of(scores),
        "samples": shape[1],
        "count": count,
        "is_turned": is_known and count == shape[0] != shape[1],
    }


SITUATIONS: dict[str, Situation] = {
    "kind of reduction": SituationRow(
        "A loss is reduced by 'mean', 'sum' or 'none', and got {given!r}.",
        ("meant", "Say {meant!r}: reduction={meant!r}."),
        facts=_reduction,
    ),
    "share of the smoothing": SituationRow(
        "label_smoothing is the share, from 0 to 1, that is spread over all classes, and got "
        "{given}.",
        "Give a share: 0.1 for a tenth.",
    ),
    "input lengths of a ctc loss": SituationRow(
        "An input length is {given}, and log_probs has {most} steps, its dimension 0.",
        "Give the lengths of the network's output, at most {most}: its strides have shortened the "
        "input.",
        "If the batch stands first, put the time there: log_probs.transpose(0, 1).",
        about="log_probs, input_lengths",
    ),
    "targets of a ctc loss": SituationRow(
        "A target length is {wanted}, and each target has {given} places.",
        "Give the length of each target without its padding: at most {given}.",
        about="targets, target_lengths",
    ),
    "blank of a ctc loss": SituationRow(
        "blank={blank} is none of the classes of log_probs, 0 to {last}.",
        "Give the number of the class that stands for no label: blank=0, or make the network "
        "return one class more, for a blank behind the last label.",
        about="log_probs",
        facts=lambda failure, found: {
            "blank": failure.operand("blank").value,
            "last": _classes(failure) - 1,
        },
    ),
    "variance below zero": SituationRow(
        "A variance is not negative, and var has values below 0.",
        "Make the network's output positive: F.softplus(var), or var.exp() where it stands for the "
        "logarithm.",
        about="var",
    ),
    "target of a margin": SituationRow(
        "The two inputs of a ranking loss and its target have one shape, and they have others.",
        ("is_column", "Take the last dimension out of the target: target.squeeze(-1)."),
        "Give a target of the shape of the inputs, of 1 and -1.",
        about="input1, target",
        facts=_margin,
    ),
    "weight of a loss": SituationRow(
        "A weight of shape {shape} is multiplied with what has the shape {wanted}: it has {given} "
        "in the last dimension, which is {last} there.",
        "If it is for the last dimension, give it one weight for each of the {last} there.",
        about="weight",
        facts=_weight,
    ),
    "lengths of a ctc loss": SituationRow(
        "ctc_loss takes [time, batch, classes] and one length for each of the {samples} samples, "
        "and {which}_lengths has {count}.",
        ("is_turned", "Put time first: {scores_it}.transpose(0, 1)."),
        "Give {which}_lengths one number for each sample of the batch.",
        about="log_probs",
        facts=_lengths,
    ),
}
