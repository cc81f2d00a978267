"""Losses that got the wrong kind of target."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.failures.assignments import assignments_of
from torchtap.failures.failure import Failure
from torchtap.failures.operands import Operand, bounds_of, dtype_text, dtype_word, shape_text
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.rearrangements import RESHAPING, samples_of_one_batch
from torchtap.failures.situation_row import Situation, SituationRow

_MOST_NODES = 200
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
    return {
        **names_of_loss(failure, found),
        "held": held["given"] or held["other"],
        "is_broken": is_known and not bool((value == value.round()).all()),
        "is_whole": not is_known or bool((value == value.round()).all()),
    }


def _column(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given, target, source, name = operands_of_loss(failure)
    value, rows = target.value, getattr(given.value, "shape", (None,))[0]
    is_column = isinstance(value, Tensor) and value.dim() == 2 and value.shape[1] == 1
    is_flat = isinstance(value, Tensor) and not is_column and value.numel() == rows
    functions = [one.code.co_name for one in failure.frames if one.is_torch]
    pair = next((one for one in functions if one.endswith("embedding_loss")), "")
    return {
        "takes": "one target, 1 or -1, per row, " if pair else "one class number per row, int64",
        "source": source,
        "name": name,
        "is_column": is_column,
        "is_flat": is_flat,
        "is_wide": not is_column and not is_flat,
    }


def _marked(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say whether a target of the shape of the scores has one 1 for each sample, or several."""
    value, words = operands_of_loss(failure)[1].value, names_of_loss(failure, found)
    bounds = bounds_of(value) if isinstance(value, Tensor) and value.dim() > 1 else None
    is_marks = bounds is not None and bounds[0] >= 0 and bounds[1] <= 1
    is_one = is_marks and bool((value.sum(1) == 1).all())
    return {
        **words,
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
    is_mark = is_flag = has_gaps = False
    if not shift and num is not None and isinstance(target, Tensor) and low is not None:
        out = set(target[(target < 0) | (target >= num)].flatten()[:4096].tolist())
        is_mark = len(out) == 1 and (value < 0 or value in _MARKS)
        is_flag = value == 255 and num <= 2 and bool(((target == 0) | (target == 255)).all())
        has_gaps = value >= num and len(set(target.flatten()[:4096].tolist())) <= num
    return {
        "is_from_one": shift == 1,
        "is_from_less": shift == -1,
        "is_binary": is_single,
        "is_mark": is_mark and not is_single and not is_flag,
        "is_flag": is_flag,
        "is_class": value >= 0 and not is_single and not is_flag,
        "has_gaps": has_gaps and not is_single and not is_flag and not is_mark,
        "may_be_mark": not is_mark and not is_single and value not in (0, 1),
    }


def _last_layer(failure: Failure, given: Operand, num: int) -> str:
    """The layer that made the scores, with more classes; empty if it is not a linear one."""
    module = failure.origin(given).module
    if not isinstance(module, nn.Linear):
        return ""
    variable = failure.names.variable(module)
    return f": {variable} = nn.Linear({module.in_features}, {num})"


def _batch(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given = failure.operand("input")
    rows, wanted = int(found["given"]), int(found["wanted"])
    return {
        **names_of_loss(failure, found),
        "is_over_time": _is_over_time(given.value, failure.operand("target").value),
        "is_unflattened": _is_unflattened(failure, rows),
        "wanted_shape": shape_text(failure.operand("target").value) or f"{wanted} rows",
        "layer": _in_dimension_1(given.value, wanted),
        "mixed": _mixing_reshape(given.value, rows, wanted),
        "times": rows // wanted if wanted and rows % wanted == 0 else 0,
        "is_shifted": rows == wanted + 1,
        "batch": samples_of_one_batch((rows, wanted)),
    }


def _in_dimension_1(scores: Any, wanted: int) -> bool:
    """Return whether the rows that are wanted stand behind another dimension."""
    return isinstance(scores, Tensor) and scores.dim() == 3 and scores.shape[1] == wanted


def _mixing_reshape(scores: Any, rows: int, wanted: int) -> str:
    """Return the shape that the batch had before a reshape made other rows of it; else empty."""
    waiting = [scores.grad_fn] if isinstance(scores, Tensor) and scores.grad_fn else []
    for _ in range(_MOST_NODES):
        node = waiting.pop(0) if waiting else None
        if node is None:
            return ""
        before = getattr(node, "_saved_self_sym_sizes", None)
        if type(node).__name__ in RESHAPING and before is not None:
            sizes = [int(one) for one in before]
            if len(sizes) > 1 and sizes[0] == wanted and math.prod(sizes) % rows == 0:
                return str(sizes)
        waiting += [one for one, _ in node.next_functions if one is not None]
    return ""


def _is_over_time(given: Any, target: Any) -> bool:
    """Return whether scores of each time would fit a target that is flattened."""
    if not isinstance(given, Tensor) or given.dim() != 3:
        return False
    return not isinstance(target, Tensor) or given[..., 0].numel() == target.numel()


def _is_unflattened(failure: Failure, rows: int) -> bool:
    """Return whether the scores are one row an element, and the target is not flattened."""
    target = failure.operand("target").value
    return isinstance(target, Tensor) and target.dim() > 1 and target.numel() == rows


def _turned(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The dimension of the scores with the classes, if one alone makes them fit the target."""
    given, target, source, name = operands_of_loss(failure)
    words: dict[str, Any] = {
        "source": source,
        "name": name,
        "dim": "",
        "cut": "",
        "first": "",
        "rows": "",
        "is_single": False,
    }
    words["is_flat"] = words["is_map"] = False
    if not isinstance(given.value, Tensor) or not isinstance(target.value, Tensor):
        return words
    shape, wanted = list(given.value.shape), list(target.value.shape)
    words |= {"shape": shape_text(given.value), "target": shape_text(target.value)}
    words["is_flat"] = len(shape) > 1 and math.prod(shape[:-1]) == math.prod(wanted)
    words["is_single"] = len(wanted) == len(shape) and wanted[1:2] == [1] and shape[1] > 1
    is_picture = len(shape) == 4 and len(wanted) == 3 and shape[0] == wanted[0]
    words["is_map"] = is_picture and shape[2:] != wanted[1:] and shape[1:3] != wanted[1:]
    fitting = [at for at in range(len(shape)) if shape[:at] + shape[at + 1 :] == wanted]
    if len(wanted) == len(shape) - 1 and len(fitting) == 1:
        words["dim"] = str(fitting[0] if fitting[0] < len(shape) - 1 else -1)
    elif len(shape) == 3 and len(wanted) == 2 and shape[0] == wanted[0]:
        words["cut"] = f"{grouped(name)}[:, :{shape[1]}]" if wanted[1] > shape[1] else ""
    elif len(shape) == 3 and wanted == shape[:1]:
        words["rows"] = str(shape[1])
    elif len(shape) == 1 and len(wanted) == 1:
        words["first"] = _whole_of_row(failure, source)
    return words


def _whole_of_row(failure: Failure, source: str) -> str:
    """The expression whose first row stands for the whole; empty if the source does not tell."""
    frame = failure.user
    for one in [] if frame is None or not source.isidentifier() else assignments_of(frame, source):
        match one.value:
            case ast.Subscript(value=whole, slice=ast.Constant(value=0)):
                return written(whole, "" if frame is None else frame.file)
    return ""


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
    "class dtype": SituationRow(
        "The loss takes class numbers (int64) as its target, and {name} holds {held_dtype}.",
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
    "class column": SituationRow(
        "The loss takes {takes}[batch], and {name} is {shape}.",
        ("is_column", "Take the column out: {name_it}.squeeze(1)."),
        (
            "is_flat",
            "If it has one class for each row of {source}, flatten it: {name_it}.flatten().",
        ),
        ("is_wide", "If it is one-hot, take its class numbers: {name_it}.argmax(1)."),
        (
            "is_wide",
            "If it holds several classes for each row, give F.binary_cross_entropy_with_logits a "
            "place for each class, 1 or 0, in the shape of the input.",
        ),
        about="target, input",
        facts=_column,
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
    "batch of a loss": SituationRow(
        "{source} has {given} rows and {name} has {wanted}: {wanted_shape}.",
        ("is_unflattened", "Flatten the target as well: {name_it}.flatten()."),
        (
            "is_over_time",
            "Flatten both over time: {source_it}.flatten(0, 1) against {name_it}.flatten().",
        ),
        (
            "layer",
            "If the batch of {source} stands in dimension 1, take one of what stands before it, "
            "such as the last: {source_it}[-1].",
        ),
        (
            "mixed",
            "A reshape on the way to {source} made {given} rows of {wanted}, the batch of {mixed}: "
            "keep the batch there, .flatten(1) or .view(x.size(0), -1), and fit the layer behind "
            "it to the width.",
        ),
        (
            "times",
            "If each sample is to give one row, keep the batch where {source} was reshaped: "
            "flatten(1), and not view(-1, n).",
        ),
        (
            "times",
            "If each sample gives {times} rows, as of steps or crops, repeat its target for them: "
            "{name_it}.repeat_interleave({times}).",
        ),
        (
            "is_shifted",
            "If each row predicts the next, leave out the last row of scores: {source_it}[:-1].",
        ),
        "{batch}",
        about="input, target",
        facts=_batch,
    ),
    "one-hot of integers": SituationRow(
        "{name} has the shape of the input, so the loss reads it as class probabilities, which are "
        "floats; it holds {given_dtype}.",
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
    "target of another size": SituationRow(
        "The loss takes the classes of {source} ({shape}) in dimension 1, and the other dimensions "
        "have to be those of {name} ({target}).",
        ("is_single", "Take its dimension of one away: {name_it}.squeeze(1)."),
        ("dim", "Move the classes behind the batch: {source_it}.movedim({dim}, 1)."),
        (
            "cut",
            "Move the classes behind the batch, {source_it}.movedim(-1, 1), and cut the target to "
            "what was predicted: {cut}.",
        ),
        (
            "is_map",
            "If both are maps of one picture, resize the scores to the target: "
            "F.interpolate({source}, size={name_it}.shape[-2:], mode='bilinear').",
        ),
        ("first", "Take all rows, and not the first alone: {source} = {first}."),
        (
            "rows",
            "The loss takes one row of scores for each class: take one of the {rows}, such as "
            "{source_it}[:, 0], or their mean, {source_it}.mean(1).",
        ),
        (
            "is_flat",
            "Flatten both, if they have one order: {source_it}.flatten(0, -2) against "
            "{name_it}.flatten().",
        ),
        about="input, target",
        facts=_turned,
    ),
    "dtypes of an operation": SituationRow(
        "{name} holds {given_word}, where the others hold {wanted_word}.",
        "Convert it: {name_it}.to(torch.{wanted_word}).",
        facts=_weight,
    ),
}
