"""Losses that got the wrong kind of target."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.failures.failure import Failure
from torchtap.failures.operands import Operand, bounds_of, dtype_text, dtype_word
from torchtap.failures.situation_row import Situation, SituationRow

_MARKS = (100, 254, 255, 65535)
"""Numbers beyond the classes that data sets use for what belongs to none."""


def operands_of_loss(failure: Failure) -> tuple[Operand, Operand, str, str]:
    """Input and target of the loss, and what the program calls them."""
    given = failure.operand("input", "the input")
    target = failure.operand("target", "the target")
    return given, target, failure.name_of(given), failure.name_of(target)


def names_of_loss(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return dict(zip(("source", "name"), operands_of_loss(failure)[2:], strict=True))


def _classes(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    held, value = found.groupdict(), operands_of_loss(failure)[1].value
    is_known = bounds_of(value) is not None and isinstance(value, Tensor)
    scores = operands_of_loss(failure)[0].value
    is_whole = not is_known or bool((value == value.round()).all())
    # One score for each is a score of yes: there is no second class.
    is_single = isinstance(scores, Tensor) and scores.dim() == 2 and scores.shape[1] == 1
    return {
        **names_of_loss(failure, found),
        "held": held["given"] or held["other"],
        "is_broken": is_known and not is_whole,
        "is_single": is_single,
        "is_whole": is_whole and not is_single,
    }


def _marked(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say whether a target of the shape of the scores has one 1 for each sample, or several."""
    value, words = operands_of_loss(failure)[1].value, names_of_loss(failure, found)
    given = operands_of_loss(failure)[0].value
    if isinstance(given, Tensor) and not given.is_floating_point() and given.dim() == 1:
        none = dict.fromkeys(("is_one", "is_several", "is_values", "is_unknown"), False)
        return {**words, **none, "span": "", "is_chosen": True}
    bounds = bounds_of(value) if isinstance(value, Tensor) and value.dim() > 1 else None
    is_marks = bounds is not None and bounds[0] >= 0 and bounds[1] <= 1
    is_one = is_marks and bool((value.sum(1) == 1).all())
    return {
        **words,
        "is_chosen": False,
        "is_one": is_one,
        "is_several": is_marks and not is_one,
        "is_values": bounds is not None and not is_marks,
        "is_unknown": bounds is None,
        "span": "" if bounds is None else f"from {int(bounds[0])} to {int(bounds[1])}",
    }


def _range(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given, target, _, _ = operands_of_loss(failure)
    scores, value = given.value, int(found["value"])
    num = None
    if isinstance(scores, Tensor) and scores.dim():
        num = int(scores.shape[1 if scores.dim() > 1 else 0])
    span = bounds_of(target.value)
    low, high = (None, None) if span is None else (int(span[0]), int(span[1]))
    return {
        **names_of_loss(failure, found),
        "num": num,
        "known": "" if num is None else f" from 0 to {num - 1}",
        "goes": "" if low is None or low == high else f"; it goes from {low} to {high}",
        "more": max(value, high or 0) + 1,
        **_meaning(target.value, num, value, low, high),
        "layer": _last_layer(failure, given, max(value, high or 0) + 1),
    }


def _meaning(
    target: object, num: int | None, value: int, low: int | None, high: int | None
) -> dict[str, Any]:
    """Tell a class that is counted otherwise from a mark, as far as all of them tell."""
    shift = 0
    if num is not None and low is not None and high is not None:
        is_one_up, is_one_down = (low, high) == (1, num), low == -1 and high == num - 2
        shift = 1 if is_one_up or (low >= 1 and high == num) else -1 if is_one_down else 0
    is_single = num == 1 and low == 0 and high in (1, 255)
    is_mark = is_flag = has_gaps = is_grey = False
    several = False
    if not shift and num is not None and isinstance(target, Tensor) and low is not None:
        out = set(target[(target < 0) | (target >= num)].flatten()[:4096].tolist())
        is_mark = len(out) == 1 and (value < 0 or value in _MARKS)
        is_flag = value == 255 and num <= 2 and bool(((target == 0) | (target == 255)).all())
        has_gaps = value >= num and len(set(target.flatten()[:4096].tolist())) <= num
        several = len(out) > 1
        is_grey = several and target.dim() > 2 and low >= 0 and high is not None and high > 2 * num
    return {
        "is_from_one": shift == 1,
        "is_from_less": shift == -1,
        "is_binary": is_single,
        "is_mark": is_mark and not is_single and not is_flag,
        "is_flag": is_flag,
        "is_class": value >= 0 and not is_single and not is_flag and not is_grey,
        "has_gaps": has_gaps and not is_single and not is_flag and not is_mark and not is_grey,
        "may_be_mark": not is_mark and not is_single and not several and value not in (0, 1),
        "is_grey": is_grey,
    }


def _last_layer(failure: Failure, given: Operand, num: int) -> str:
    """The layer that made the scores, with more classes; empty if it is not a linear one."""
    module = failure.origin(given).module
    if not isinstance(module, nn.Linear):
        return ""
    variable = failure.names.variable(module)
    return f": {variable} = nn.Linear({module.in_features}, {num})"


def _weight(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The operand that has the dtype which was found, and that which the others have."""
    wanted, given = dtype_word(found["wanted"]), dtype_word(found["given"])
    names = ("weight", "pos_weight", "target", "input")
    known = [one for one in map(failure.operand, names) if isinstance(one.value, Tensor)]
    every = [one for one in [*known, *failure.tensors] if dtype_text(one.value) == given]
    name = failure.name_of(every[0]) if every else "x"
    return {
        "name": name,
        "wanted_word": wanted,
        "given_word": given,
        "details": failure.details(*every[:1]) if every else failure.details(),
    }


SITUATIONS: dict[str, Situation] = {
    "class dtype": SituationRow(
        "The loss takes class numbers (int64) as its target, and {name} holds {held_dtype}.",
        (
            "is_single",
            "{source} has one score for each: if it says yes or no, "
            "F.binary_cross_entropy_with_logits({source}, {name_it}.reshape({source_it}.shape)"
            ".float()), without a softmax before.",
        ),
        ("is_whole", "If it holds class numbers, convert it: {name_it}.long()."),
        (
            "is_broken",
            "It holds numbers between whole ones, so no classes: for a regression, use F.mse_loss.",
        ),
        "For class probabilities, give a target of the shape of the input to F.cross_entropy; for "
        "a regression, use F.mse_loss.",
        about="target, input",
        facts=_classes,
    ),
    "class range": SituationRow(
        "{name} has the class {value}, and {source} has {num} classes{known}{goes}.",
        ("is_from_one", "If the classes are counted from 1, count them from 0: {name_it} - 1."),
        ("is_from_less", "If -1 is a class too, count the classes from 0: {name_it} + 1."),
        (
            "is_flag",
            "It holds 0 and {value} alone: if {value} is class 1, give ({name_it} == "
            "{value}).long().",
        ),
        (
            "is_binary",
            "One score for each is for yes and no: F.binary_cross_entropy_with_logits({source}, "
            "{name_it}.reshape({source_it}.shape).float()), without a softmax before.",
        ),
        ("is_binary", "Or make the last layer give {more} classes{layer}."),
        (
            "is_grey",
            "If it is a mask that was read as a picture, its greys stand for classes and are no "
            "numbers of classes: number them from 0, by a table from each grey to its class, and "
            "resize masks with mode='nearest' alone.",
        ),
        ("is_mark", "If {value} stands for no class, leave it out: ignore_index={value}."),
        ("is_class", "If {value} is a class, make the last layer give {more} classes{layer}."),
        (
            "has_gaps",
            "If the classes are counted with gaps, number them anew from 0 for all data, such as "
            "by a dict of their numbers.",
        ),
        ("may_be_mark", "If {value} stands for no class, leave it out: ignore_index={value}."),
        about="target, input",
        facts=_range,
    ),
    "one-hot of integers": SituationRow(
        "{name} has the shape of the input, so the loss reads it as class probabilities, which are "
        "floats; it holds {given_dtype}.",
        (
            "is_chosen",
            "{source} holds whole numbers too, and no scores: if argmax made them of scores, give "
            "the loss the scores, [batch, classes]; argmax has no gradient.",
        ),
        ("is_one", "Give class numbers: {name_it}.argmax(1)."),
        ("is_one", "Give floats: {name_it}.float()."),
        (
            "is_several",
            "If several classes may hold at once, as 1 and 0 in {name} say, the loss for that is "
            "F.binary_cross_entropy_with_logits({source}, {name_it}.float()).",
        ),
        (
            "is_values",
            "It holds values {span}, and no 1 for a class: if it is a picture whose colours stand "
            "for classes, turn each colour into the number of its class; if it is what is to be "
            "computed, use a loss of values: F.mse_loss.",
        ),
        ("is_unknown", "If it is one-hot, give class numbers: {name_it}.argmax(1)."),
        ("is_unknown", "If it holds probabilities, give floats: {name_it}.float()."),
        about="target, input",
        facts=_marked,
    ),
    "dtypes of an operation": SituationRow(
        "{name} holds {given_word}, where the others hold {wanted_word}.",
        "Convert it: {name_it}.to(torch.{wanted_word}).",
        facts=_weight,
    ),
}
