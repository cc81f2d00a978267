"""Losses that got the wrong kind of target."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.operands import Operand, bounds_of
from torchtap.failures.parsed_source import grouped
from torchtap.failures.situation_row import Situation, SituationRow


def _pair(failure: Failure) -> tuple[Operand, Operand, str, str]:
    """Input and target of the loss, and what the program calls them."""
    given = failure.operand("input", "the input")
    target = failure.operand("target", "the target")
    return given, target, failure.name_of(given), failure.name_of(target)


def _named(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return dict(zip(("source", "name"), _pair(failure)[2:], strict=True))


def _classes(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    held = found.groupdict()
    return {**_named(failure, found), "held": held["given"] or held["other"]}


def _column(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    _, target, _, name = _pair(failure)
    value = target.value
    is_column = isinstance(value, Tensor) and value.dim() == 2 and value.shape[1] == 1
    return {"name": name, "is_column": is_column, "is_wide": not is_column}


def _range(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given, target, _, _ = _pair(failure)
    scores, value = given.value, int(found["value"])
    num = None
    if isinstance(scores, Tensor) and scores.dim():
        num = int(scores.shape[1 if scores.dim() > 1 else 0])
    span = bounds_of(target.value)
    is_from_one = num is not None and value == num and span is not None and span[0] >= 1
    return {
        **_named(failure, found),
        "num": num,
        "known": "" if num is None else f" from 0 to {num - 1}",
        "more": (value if span is None else max(value, int(span[1]))) + 1,
        "is_from_one": is_from_one,
        "is_class": value >= 0,
    }


def _batch(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given = failure.operand("input")
    rows, wanted = int(found["given"]), int(found["wanted"])
    return {
        **_named(failure, found),
        "is_over_time": isinstance(given.value, Tensor) and given.value.dim() == 3,
        "is_reshaped": bool(wanted) and rows % wanted == 0,
    }


def _binary_size(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    a, b = (one.value for one in _pair(failure)[:2])
    is_known = isinstance(a, Tensor) and isinstance(b, Tensor)
    has_as_many = is_known and a.numel() == b.numel()
    return {
        **_named(failure, found),
        "has_as_many": has_as_many,
        "has_others": not has_as_many,
        "is_column": has_as_many and a.dim() == 2 and a.shape[1] == 1 and b.dim() == 1,
    }


def _probabilities(failure: Failure, found: re.Match[str]) -> Explanation:
    given, target, source, name = _pair(failure)
    wrong, which = (target, name) if found["which"] == "target" else (given, source)
    span, it = bounds_of(wrong.value), grouped(which)
    bounds = "" if span is None else f", from {span[0]:.4g} to {span[1]:.4g}"
    way = (
        "Give logits to F.binary_cross_entropy_with_logits, or nn.BCEWithLogitsLoss, with "
        f"{which} as it is."
    )
    if found["which"] == "target":
        way = f"Give 0 and 1, or shares between: {it}.clamp(0, 1), {it} / 255."
    return Explanation(
        f"The loss takes probabilities, and {which} has values outside of 0 to 1{bounds}.",
        (way, f"Make probabilities of them: {it}.sigmoid()."),
        failure.details(wrong),
    )


def _spatial(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    target = failure.operand("target", "the target")
    value = target.value
    is_single = isinstance(value, Tensor) and value.dim() == 4 and value.shape[1] == 1
    is_last = isinstance(value, Tensor) and value.dim() == 4 and value.shape[-1] in (1, 3, 4)
    return {
        "name": failure.name_of(target),
        "is_single": is_single,
        "is_colored": is_last and not is_single,
    }


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
    "spatial target": SituationRow(
        "The loss takes one class number for each pixel, int64[batch, height, width], and {name} "
        "is {shape}.",
        ("is_single", "Take its dimension of one away: {name_it}.squeeze(1)."),
        (
            "is_colored",
            "It holds colours: turn each colour into the number of its class first.",
        ),
        "If it holds a probability for each class, give it the shape and dtype of the input.",
        about="target",
        facts=_spatial,
    ),
    "lengths of a ctc loss": SituationRow(
        "ctc_loss takes [time, batch, classes] and one length for each of the {samples} samples, "
        "and {which}_lengths has {count}.",
        ("is_turned", "Put time first: {scores_it}.transpose(0, 1)."),
        "Give {which}_lengths one number for each sample of the batch.",
        about="log_probs",
        facts=_lengths,
    ),
    "class dtype": SituationRow(
        "The loss takes class numbers (int64) as its target, and {name} holds {held_dtype}.",
        "Convert it, if it holds class numbers: {name_it}.long().",
        "For class probabilities, give a target of the shape of the input to F.cross_entropy; for "
        "a regression, use F.mse_loss.",
        about="target, input",
        facts=_classes,
    ),
    "class column": SituationRow(
        "The loss takes one class number per row, int64[batch], and {name} is {shape}.",
        ("is_column", "Take the column out: {name_it}.squeeze(1)."),
        ("is_wide", "Take class numbers of a one-hot target: {name_it}.argmax(1)."),
        (
            "is_wide",
            "For probabilities of each class, give floats of the shape of the input: "
            "{name_it}.float().",
        ),
        about="target, input",
        facts=_column,
    ),
    "class range": SituationRow(
        "{name} has the class {value}, and {source} has {num} classes{known}.",
        ("is_from_one", "Count the classes from 0: {name_it} - 1."),
        ("is_class", "Make the last layer give {more} classes or more, if {value} is a class."),
        "Leave such rows out: ignore_index={value}, if it stands for no class.",
        about="target, input",
        facts=_range,
    ),
    "batch of a loss": SituationRow(
        "{source} has {given} rows and {name} has {wanted}.",
        (
            "is_over_time",
            "Flatten both over time: {source_it}.flatten(0, 1) against {name_it}.flatten().",
        ),
        "Give input and target of one batch: the same rows, in the same order.",
        (
            "is_reshaped",
            "Keep the batch where {source} was reshaped: flatten(1), and not view(-1, n).",
        ),
        about="input, target",
        facts=_batch,
    ),
    "one-hot of integers": SituationRow(
        "{name} has the shape of the input, so the loss reads it as class probabilities, which are "
        "floats; it holds {given_dtype}.",
        "Give class numbers: {name_it}.argmax(1).",
        "Give floats: {name_it}.float().",
        about="target, input",
        facts=_named,
    ),
    "target of another size": SituationRow(
        "The loss takes the classes of {source} in dimension 1, so a target of {wanted}, and "
        "{name} is {given}.",
        "Move the classes behind the batch: {source_it}.movedim(-1, 1).",
        "Flatten both: {source_it}.flatten(0, -2) against {name_it}.flatten().",
        about="input, target",
        facts=_named,
    ),
    "binary dtype": SituationRow(
        "The loss takes a target of {wanted_dtype}, and {name} holds {given_dtype}.",
        "Convert it: {name_it}.to(torch.float32), or to the dtype of the input.",
        about="target, input",
        facts=_named,
    ),
    "binary size": SituationRow(
        "The loss takes one target per element, and {name} is {target} for {source} of {input}.",
        ("has_as_many", "Bring them to one shape: {name_it}.view_as({source})."),
        ("is_column", "Take the column out: {source_it}.squeeze(1)."),
        ("has_others", "Give a target of the shape of the input: one number for each output."),
        about="input, target",
        facts=_binary_size,
    ),
    "probabilities": _probabilities,
}
