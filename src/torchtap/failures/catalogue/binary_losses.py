"""Losses of yes and no: targets of another size, dtype or range."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.catalogue.losses import names_of_loss, operands_of_loss
from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.operands import Operand, bounds_of
from torchtap.failures.parsed_source import grouped
from torchtap.failures.rearrangements import samples_of_one_batch
from torchtap.failures.situation_row import Situation, SituationRow


def _binary_size(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    a, b = (one.value for one in operands_of_loss(failure)[:2])
    is_known = isinstance(a, Tensor) and isinstance(b, Tensor)
    has_as_many = is_known and a.numel() == b.numel()
    is_column = has_as_many and a.dim() == 2 and a.shape[1] == 1 and b.dim() == 1
    is_row = has_as_many and b.dim() == 2 and b.shape[1] == 1 and a.dim() == 1
    turned = _order_of_target(a, b) if has_as_many else ""
    return {
        **names_of_loss(failure, found),
        "has_as_many": has_as_many,
        "order": turned,
        "has_others": not has_as_many,
        "is_column": is_column,
        "is_row": is_row,
        "lacking": _lacking(a, b) if has_as_many else "",
        "is_turned": has_as_many and not (is_column or is_row or turned or _lacking(a, b)),
        "batch": _batches(a, b),
        **_widths(a, b),
        "sides": _sides(a, b),
        "is_of_samples": _has_one_for_each(a, b),
        **_classes_given(a, b),
    }


def _order_of_target(scores: Any, target: Any) -> str:
    """Return the method that puts the dimensions of a target in the order of the scores."""
    shape, wanted = list(target.shape), list(scores.shape)
    if len(shape) != len(wanted) or len(shape) < 2:
        return ""
    if [shape[0], shape[-1], *shape[1:-1]] == wanted and len(shape) > 2:
        return "movedim(-1, 1)"
    if [shape[0], *shape[2:], shape[1]] == wanted and len(shape) > 2:
        return "movedim(1, -1)"
    return "mT" if shape[::-1] == wanted and len(shape) == 2 else ""


def _lacking(scores: Any, target: Any) -> str:
    """Return the method that gives a target the dimension of one that it lacks; else empty."""
    shape, wanted = list(target.shape), list(scores.shape)
    fitting = [at for at in range(len(wanted)) if [*shape[:at], 1, *shape[at:]] == wanted]
    return f"unsqueeze({fitting[0]})" if fitting and len(wanted) > 2 else ""


def _batches(scores: Any, target: Any) -> str:
    """Return the way out where input and target have other numbers of samples alone."""
    is_known = isinstance(scores, Tensor) and isinstance(target, Tensor)
    if not is_known or scores.dim() != target.dim() or scores.shape[1:] != target.shape[1:]:
        return ""
    return samples_of_one_batch((len(scores), len(target)))


def _widths(scores: Any, target: Any) -> Mapping[str, Any]:
    """Say which numbers of outputs and of labels differ, where nothing else does."""
    is_known = isinstance(scores, Tensor) and isinstance(target, Tensor)
    is_pair = is_known and scores.dim() == target.dim() > 1 and len(scores) == len(target)
    if not is_pair or scores.shape[2:] != target.shape[2:]:
        return {"width": "", "labels": "", "is_numbered": False}
    width, labels = scores.shape[1], target.shape[1]
    is_wide = min(width, labels) > 1 or scores.dim() > 2
    known = bounds_of(target) if labels == 1 < width and scores.dim() > 2 else None
    is_whole = known is not None and bool((target == target.round()).all())
    return {
        "width": str(width) if is_wide else "",
        "labels": str(labels) if is_wide else "",
        "is_numbered": is_whole and known is not None and 0 <= known[0] <= known[1] < width,
    }


def _sides(scores: Any, target: Any) -> str:
    """Return the sides of a target that is a map of another size than the scores; else empty."""
    is_known = isinstance(scores, Tensor) and isinstance(target, Tensor)
    is_map = is_known and scores.dim() == target.dim() == 4 and len(scores) == len(target)
    is_map = is_map and scores.shape[1] == target.shape[1] and scores.numel() != target.numel()
    return ", ".join(map(str, target.shape[2:])) if is_map else ""


def _has_one_for_each(scores: Any, target: Any) -> bool:
    """Return whether a target has one number for each sample, which has several outputs."""
    is_known = isinstance(scores, Tensor) and isinstance(target, Tensor)
    return is_known and scores.dim() > 2 and target.numel() == len(scores) < scores.numel()


def _classes_given(scores: Any, target: Any) -> Mapping[str, Any]:
    """Say whether a target has a whole number for each row of several scores."""
    is_pair = isinstance(scores, Tensor) and isinstance(target, Tensor)
    if not is_pair or scores.dim() != 2 or target.numel() != len(scores) or scores.shape[1] < 2:
        return {"classes": "", "is_class": False, "is_wide": False}
    known = bounds_of(target)
    is_whole = not target.is_floating_point() or bool((target == target.round()).all())
    is_class = is_whole and known is not None and known[0] >= 0 and known[1] < scores.shape[1]
    is_wide = is_class and known is not None and known[1] <= 1 and scores.shape[1] > 2
    return {"classes": str(scores.shape[1]), "is_class": is_class, "is_wide": is_wide}


def _probabilities(failure: Failure, found: re.Match[str]) -> Explanation:
    given, target, source, name = operands_of_loss(failure)
    wrong, which = (target, name) if found["which"] == "target" else (given, source)
    span, it = bounds_of(wrong.value), grouped(which)
    if span is not None and any(math.isnan(one) for one in span):
        return Explanation(
            f"The loss takes probabilities, and {which} holds NaN, which is no number.",
            (
                "Find the operation that made the first NaN or Inf: tt.locate(model, step, "
                "*batch), or tt.guard(model) around the training.",
                "If the training went well before, make its steps smaller: a lower learning rate, "
                "or torch.nn.utils.clip_grad_norm_.",
                "If the data hold NaN, fill it or leave those rows out: torch.isnan(x).any().",
            ),
            failure.details(wrong),
        )
    bounds = "" if span is None else f", from {span[0]:.4g} to {span[1]:.4g}"
    way = (
        "Give logits to F.binary_cross_entropy_with_logits, or nn.BCEWithLogitsLoss, with "
        f"{which} as it is."
    )
    if found["which"] == "target":
        way = "Give 0 and 1, or shares between, for what the program counts as no and yes."
        if span is not None and span == (0.0, 255.0):
            way = f"If it is a picture of 0 to 255, bring it to 0 to 1: {it} / 255."
        elif span is not None and span == (1.0, 2.0):
            way = f"If 1 and 2 stand for no and yes, count from 0: {it} - 1."
        elif span is not None and span == (-1.0, 1.0):
            way = f"If -1 and 1 stand for no and yes, make 0 and 1 of them: ({it} + 1) / 2."
        return Explanation(
            f"The loss takes probabilities, and {which} has values outside of 0 to 1{bounds}.",
            (way,),
            failure.details(wrong),
        )
    return Explanation(
        f"The loss takes probabilities, and {which} has values outside of 0 to 1{bounds}.",
        (*_exchanged(given, target, source, name), *_ways_of_scores(failure, given, way)),
        failure.details(wrong),
    )


def _exchanged(given: Operand, target: Operand, source: str, name: str) -> Iterator[str]:
    """Yield the other order, where the first argument holds classes and the second shares."""
    known = bounds_of(given.value), bounds_of(target.value)
    if None in known or given.value.requires_grad:
        return
    is_whole = bool((given.value == given.value.round()).all())
    is_share = known[1][0] >= 0 and known[1][1] <= 1  # type: ignore[index]
    if is_whole and is_share and not bool((target.value == target.value.round()).all()):
        yield (
            f"{source} holds whole numbers and {name} shares: the loss takes the output of the "
            f"model first, and the target second, loss({name}, {source}); then see that the target "
            "holds 0 and 1."
        )


_ACTIVATIONS = {
    "SigmoidBackward0": "a sigmoid",
    "SoftmaxBackward0": "a softmax",
    "TanhBackward0": "tanh",
}


def _ways_of_scores(failure: Failure, given: Operand, with_logits: str) -> Iterator[str]:
    """Yield how scores become probabilities, by how far they lie outside and by what made them."""
    it, span = grouped(failure.name_of(given)), bounds_of(given.value)
    node = given.value.grad_fn if isinstance(given.value, Tensor) else None
    made = _ACTIVATIONS.get(type(node).__name__, "")
    is_near = span is not None and span[0] > -1e-3 and span[1] < 1 + 1e-3
    if is_near or made in ("a sigmoid", "a softmax"):
        yield f"If only rounding brings them outside, cut that off: {it}.clamp(0, 1)."
        return
    if made == "tanh" or (span is not None and span[0] >= -1 and span[1] <= 1):
        yield (
            "If they come from tanh, which goes from -1 to 1, give what tanh is given to "
            "F.binary_cross_entropy_with_logits."
        )
    yield with_logits
    yield f"Make probabilities of them: {it}.sigmoid()."


SITUATIONS: dict[str, Situation] = {
    "binary dtype": SituationRow(
        "The loss takes a target of {wanted_dtype}, and {name} holds {given_dtype}.",
        "Convert it: {name_it}.to(torch.float32), or to the dtype of the input.",
        about="target, input",
        facts=names_of_loss,
    ),
    "binary size": SituationRow(
        "The loss takes one target per element, and {name} is {target} for {source} of {input}.",
        ("is_column", "Give {name} the column: {name_it}.unsqueeze(1)."),
        ("is_column", "Or take it out of the scores: {source_it}.squeeze(1)."),
        ("is_row", "Take the column out: {name_it}.squeeze(1)."),
        (
            "order",
            "If its dimensions stand in another order, put them in that of {source}: "
            "{name_it}.{order}.",
        ),
        ("lacking", "Give {name} the dimension of one: {name_it}.{lacking}."),
        ("batch", "{batch}"),
        (
            "is_numbered",
            "If it holds the number of one of {width} classes for each place, the loss of classes "
            "takes it: F.cross_entropy({source}, {name_it}.squeeze(1).long()), of scores without a "
            "sigmoid or softmax before.",
        ),
        (
            "labels",
            "If there is to be an output for each of {labels} labels, make the last layer give "
            "{labels}; if {width} is right, give a target of {width} for each.",
        ),
        (
            "is_of_samples",
            "If each sample is to have one output, bring the network to one: larger kernels or "
            "strides, nn.AdaptiveAvgPool2d(1) and nn.Flatten() behind it, or the input size that "
            "it was made for.",
        ),
        (
            "sides",
            "If both are maps of one picture, resize the scores to the target: F.interpolate("
            "{source}, size=({sides}), mode='bilinear'), before a sigmoid; or give the model "
            "pictures of the size that its output and the target share.",
        ),
        (
            "is_of_samples",
            "If all outputs of a sample have its target: {name_it}.reshape(-1, *[1] * "
            "({source_it}.dim() - 1)).expand_as({source}).",
        ),
        (
            "is_turned",
            "Bring them to one shape, if the elements stand in one order: "
            "{name_it}.reshape({source_it}.shape).",
        ),
        (
            "is_wide",
            "If each row is yes or no, make the network give one output for it: a last layer of 1, "
            "or the input size that it was made for.",
        ),
        (
            "is_class",
            "If it holds the number of a class for each row, the loss of classes takes it: "
            "F.cross_entropy({source}, {name_it}.flatten().long()), of scores without a sigmoid or "
            "softmax before.",
        ),
        (
            "is_class",
            "Or give each class a place of its own: F.one_hot({name_it}.flatten().long(), "
            "{classes}).float().",
        ),
        ("has_others", "Give a target of the shape of the input: one number for each output."),
        about="input, target",
        facts=_binary_size,
    ),
    "probabilities": _probabilities,
}
