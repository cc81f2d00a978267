"""Losses of classes whose input and target have shapes that do not go together."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.failures.assignments import assignments_of
from torchtap.failures.catalogue.losses import names_of_loss, operands_of_loss
from torchtap.failures.failure import Failure
from torchtap.failures.operands import bounds_of, shape_text
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.rearrangements import RESHAPING, samples_of_one_batch
from torchtap.failures.situation_row import Situation, SituationRow

_MOST_NODES = 200


def _column(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given, target, source, name = operands_of_loss(failure)
    value, rows = target.value, getattr(given.value, "shape", (None,))[0]
    is_column = isinstance(value, Tensor) and value.dim() == 2 and value.shape[1] == 1
    is_flat = isinstance(value, Tensor) and not is_column and value.numel() == rows
    is_wide, bounds = not is_column and not is_flat, bounds_of(value)
    is_marks = bounds is None or (bounds[0] >= 0 and bounds[1] <= 1)
    is_one = is_marks and (bounds is None or bool((value.sum(1) == 1).all()))
    fits = isinstance(given.value, Tensor) and given.value.shape == getattr(value, "shape", None)
    functions = [one.code.co_name for one in failure.frames if one.is_torch]
    pair = next((one for one in functions if one.endswith("embedding_loss")), "")
    return {
        "takes": "one target, 1 or -1, per row, " if pair else "one class number per row, int64",
        "source": source,
        "name": name,
        "is_column": is_column,
        "is_flat": is_flat,
        "is_one": is_wide and is_one,
        "is_several": is_wide and is_marks and (fits or bounds is None),
        "steps": value.shape[1] if is_wide and not is_one and isinstance(value, Tensor) else "",
    }


def _batch(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given = failure.operand("input")
    rows, wanted = int(found["given"]), int(found["wanted"])
    return {
        **names_of_loss(failure, found),
        **_without_rows(failure.operand("target").value, rows),
        "is_over_time": _is_over_time(given.value, failure.operand("target").value),
        "is_unflattened": _is_unflattened(failure, rows),
        "wanted_shape": shape_text(failure.operand("target").value) or f"{wanted} rows",
        "layer": _in_dimension_1(given.value, wanted),
        "recurrence": _with_time_first(failure),
        "mixed": _mixing_reshape(given.value, rows, wanted),
        "times": rows // wanted if wanted and rows % wanted == 0 else 0,
        "steps": _steps(given.value, rows, wanted),
        "is_shifted": rows == wanted + 1 > 1,
        **_target_of_steps(given.value, rows, wanted),
    }


def _without_rows(target: Any, rows: int) -> Mapping[str, Any]:
    """Say that a target has no dimension, and stands for one row or for all."""
    is_number = isinstance(target, Tensor) and not target.dim()
    return {"is_number": is_number and rows == 1, "is_for_all": is_number and rows > 1}


def _target_of_steps(scores: Any, rows: int, wanted: int) -> Mapping[str, Any]:
    """Tell a target of one step more, and a map of another size, from a batch that is smaller."""
    before = next((one for one in _reshapes_before(scores) if len(one) > 2), None)
    if not wanted:
        return dict.fromkeys(("longer", "map", "batch", "joined", "is_places"), "")
    words = {"longer": "", "map": "", "batch": "", "joined": _joined_below(scores, rows, wanted)}
    words["is_places"] = "yes" if min(rows, wanted) > 1 and rows % wanted else ""
    if before is None:
        return {**words, "batch": samples_of_one_batch((rows, wanted))}
    one, other = before[:2]
    if (
        len(before) == 3
        and one * other == rows
        and wanted in ((one + 1) * other, one * (other + 1))
    ):
        at = 0 if wanted == (one + 1) * other else 1
        return {**words, "longer": f"{':, ' * at}1:"}
    if len(before) == 4 and wanted % before[0] == 0 and wanted != before[0]:
        return {**words, "map": f"{' x '.join(map(str, before))}"}
    return {**words, "batch": samples_of_one_batch((rows, wanted))}


def _joined_below(scores: Any, rows: int, wanted: int) -> str:
    """Return how many parts a concatenation put one below the other, if that made the rows."""
    for node in _nodes_before(scores):
        count = len(node.next_functions)
        is_first = getattr(node, "_saved_dim", None) == 0
        if type(node).__name__ == "CatBackward0" and is_first and 1 < count == rows / wanted:
            return str(count)
    return ""


def _with_time_first(failure: Failure) -> str:
    """Return a recurrence of the model whose output has its time first; empty if it has none."""
    for _, module in failure.names.modules():
        if isinstance(module, nn.RNNBase) and not vars(module)["batch_first"]:
            return failure.names.module(module)
    return ""


def _in_dimension_1(scores: Any, wanted: int) -> bool:
    """Return whether the rows that are wanted stand behind another dimension."""
    return isinstance(scores, Tensor) and scores.dim() == 3 and scores.shape[1] == wanted


def _mixing_reshape(scores: Any, rows: int, wanted: int) -> str:
    """Return the shape that the batch had before a reshape made other rows of it; else empty."""
    for sizes in _reshapes_before(scores):
        if len(sizes) > 1 and sizes[0] == wanted and math.prod(sizes) % rows == 0:
            return str(sizes)
    return ""


def _steps(scores: Any, rows: int, wanted: int) -> str:
    """Return how the last step is left out, where the target lacks one of each; else empty."""
    for sizes in _reshapes_before(scores):
        is_of_steps = len(sizes) == 3 and sizes[0] * sizes[1] == rows
        if is_of_steps and sizes[0] * (sizes[1] - 1) == wanted:
            return f"[:, :-1], of {sizes}"
    return ""


def _reshapes_before(scores: Any) -> Iterator[list[int]]:
    """Yield the shapes that reshapes were given on the way to a tensor, the last one first."""
    for node in _nodes_before(scores):
        before = getattr(node, "_saved_self_sym_sizes", None)
        if type(node).__name__ in RESHAPING and before is not None:
            yield [int(one) for one in before]


def _nodes_before(scores: Any) -> Iterator[Any]:
    """Yield the nodes of the graph on the way to a tensor, the last one first."""
    waiting = [scores.grad_fn] if isinstance(scores, Tensor) and scores.grad_fn else []
    for _ in range(_MOST_NODES):
        if not waiting:
            return
        node = waiting.pop(0)
        yield node
        waiting += [one for one, _ in node.next_functions if one is not None]


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
    words["is_flat"] = words["is_map"] = words["is_sample"] = False
    told = re.findall(r"\[([\d, ]*)\]", failure.text.partition("\n")[0])[:2]
    words |= dict(zip(("shape", "target"), (f"[{one}]" for one in told), strict=False))
    words = {"shape": "of another shape", "target": "another", **words}
    # The backward raises it of one vector of scores, where no tensor is known by its name.
    words["is_sample"] = told[1:] == ["1"] and told[0].isdigit() and int(told[0]) > 1
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
        words["is_sample"] = words["is_sample"] and not words["first"]
    return words


def _whole_of_row(failure: Failure, source: str) -> str:
    """The expression whose first row stands for the whole; empty if the source does not tell."""
    frame = failure.user
    for one in [] if frame is None or not source.isidentifier() else assignments_of(frame, source):
        match one.value:
            case ast.Subscript(value=whole, slice=ast.Constant(value=0)):
                return written(whole, "" if frame is None else frame.file)
    return ""


def _spatial(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given, target, source, name = operands_of_loss(failure)
    value, scores = target.value, given.value
    dim = _channels_of_target(scores, value)
    size = value.shape[dim] if dim and isinstance(value, Tensor) else 0
    known = size > 1 and bounds_of(value) is not None and isinstance(value, Tensor)
    is_one_hot = known and bool((value.sum(dim) == 1).all()) and bounds_of(value) == (0, 1)
    is_grey = known and not is_one_hot and bool((value == value.narrow(dim, 0, 1)).all())
    is_each = isinstance(value, Tensor) and value.dim() == 1
    return {
        "name": name,
        "source": source,
        "dim": dim,
        "is_single": size == 1,
        "is_one_hot": is_one_hot,
        "grey": ("[:, 0]" if dim == 1 else "[..., 0]") if is_grey else "",
        "is_colored": size in (3, 4) and not is_grey and not is_one_hot,
        "is_each": is_each,
        "is_other": size != 1 and not is_grey and not is_each,
    }


def _channels_of_target(scores: Any, target: Any) -> int:
    """Return the dimension of a target that its pixels have besides, 1 or -1; 0 if it has none."""
    if not isinstance(target, Tensor) or target.dim() != 4:
        return 0
    sides = list(scores.shape[2:]) if isinstance(scores, Tensor) else []
    is_last = list(target.shape[1:3]) == sides or target.shape[-1] in (1, 3, 4)
    return -1 if is_last and list(target.shape[2:]) != sides else 1


SITUATIONS: dict[str, Situation] = {
    "spatial target": SituationRow(
        "The loss takes one class number for each pixel, int64[batch, height, width], and {name} "
        "is {shape}.",
        ("is_single", "Take its dimension of one away: {name_it}.squeeze({dim})."),
        ("is_one_hot", "If it is one-hot, take its class numbers: {name_it}.argmax({dim})."),
        ("grey", "Its channels are equal, as of a grey picture: take one, {name_it}{grey}."),
        (
            "is_colored",
            "If its channels are colours that stand for classes, turn each colour into the number "
            "of its class first.",
        ),
        (
            "is_each",
            "If each picture has one class, bring the scores to one row for each: {source_it}.mean("
            "(2, 3)), or nn.AdaptiveAvgPool2d(1) and nn.Flatten() before the last layer.",
        ),
        (
            "is_each",
            "If each pixel has a class, the target was made of the wrong part of the data: it is "
            "[batch, height, width].",
        ),
        (
            "is_other",
            "If it holds a probability for each class, give it the shape and dtype of the input.",
        ),
        about="target",
        facts=_spatial,
    ),
    "class column": SituationRow(
        "The loss takes {takes}[batch], and {name} is {shape}.",
        ("is_column", "Take the column out: {name_it}.squeeze(1)."),
        (
            "is_flat",
            "If it has one class for each row of {source}, flatten it: {name_it}.flatten().",
        ),
        ("is_one", "If it is one-hot, take its class numbers: {name_it}.argmax(1)."),
        (
            "steps",
            "If each row holds {steps} class numbers, as of tokens or several questions, give a "
            "row of scores for each: scores of [batch, classes, {steps}].",
        ),
        (
            "is_several",
            "If it holds several classes for each row, give F.binary_cross_entropy_with_logits a "
            "place for each class, 1 or 0, in the shape of the input.",
        ),
        about="target, input",
        facts=_column,
    ),
    "batch of a loss": SituationRow(
        "{source} has {given} rows and {name} has {wanted}: {wanted_shape}.",
        ("is_number", "{name} is one number: give it the batch, {name_it}.reshape(1)."),
        (
            "is_for_all",
            "{name} is one number: give one for each row; if all have this class, "
            "{name_it}.expand({given}).",
        ),
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
            "recurrence",
            "If the batch stands first in the input of {recurrence}, make it with "
            "batch_first=True: without it the first dimension of input and output is the time, "
            "and out[-1] is the last step.",
        ),
        (
            "joined",
            "torch.cat put {joined} parts one below the other: if they belong to one sample, join "
            "them side by side, dim=1, and fit the layer behind to that width.",
        ),
        (
            "times",
            "If {source} was reshaped, and each sample is to give one row, keep the batch there: "
            "flatten(1), and not view(-1, n).",
        ),
        (
            "times",
            "If each sample gives {times} rows, as of steps or crops, repeat its target for them: "
            "{name_it}.repeat_interleave({times}).",
        ),
        (
            "steps",
            "If each step predicts the next, leave out the last step of the scores, before they "
            "are reshaped: {steps}.",
        ),
        (
            "is_shifted",
            "If each row predicts the next, leave out the last row of scores: {source_it}[:-1].",
        ),
        (
            "longer",
            "If the target begins with a step that is given and not predicted, leave that out "
            "before it is flattened: target[{longer}].",
        ),
        (
            "map",
            "If both are maps of one picture, the scores were {map} before they were reshaped: "
            "resize them to the target there, by F.interpolate.",
        ),
        ("batch", "{batch}"),
        (
            "is_places",
            "If the rows are places, such as tokens, give each its label: pad, cut and shift the "
            "labels as the inputs, also where the model puts further places in.",
        ),
        about="input, target",
        facts=_batch,
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
            "is_sample",
            "If the scores are those of one sample, give them the batch that the target has: "
            "scores.view(1, -1) where view(-1) stands, or scores.unsqueeze(0).",
        ),
        (
            "rows",
            "If each sample is to have one row of scores, take one of the {rows}: the last, "
            "{source_it}[:, -1], as behind a recurrent layer, the first, {source_it}[:, 0], or "
            "their mean, {source_it}.mean(1).",
        ),
        (
            "is_flat",
            "Flatten both, if they have one order: {source_it}.flatten(0, -2) against "
            "{name_it}.flatten().",
        ),
        about="input, target",
        facts=_turned,
    ),
}
