"""Numbers that an operation does not take: NaN, negative weights, matrices without a root."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchtap.failures.failure import Failure
from torchtap.failures.operands import Operand, bounds_of
from torchtap.failures.parsed_source import written
from torchtap.failures.situation_row import Situation, SituationRow

_MOST_MATRICES = 64
_OF_MATRICES = ("PositiveDefinite()", "LowerCholesky()", "CorrCholesky()", "LowerTriangular()")
"""Constraints for which the sign of an element is no reason."""
_FIRST_NAN = (
    "Find the operation that made the first NaN or Inf: tt.locate(model, step, *batch), or "
    "tt.guard(model) around the training."
)


def _census(value: object) -> Mapping[str, Any]:
    """How many elements are NaN, infinite and negative, of a tensor that can be read."""
    words: dict[str, Any] = {"holds": "", "is_bad": False, "is_negative": False}
    if bounds_of(value) is None or not isinstance(value, Tensor):
        return words
    value = value.detach()
    counts = {
        "NaN": int(value.isnan().sum()),
        "Inf": int(value.isinf().sum()),
        "below 0": int((value < 0).sum()),
    }
    said = [f"{count} {name}" for name, count in counts.items() if count]
    words["holds"] = f": of {value.numel()} elements, {', '.join(said)}" if said else ""
    words["is_bad"] = bool(counts["NaN"] or counts["Inf"])
    words["is_negative"] = bool(counts["below 0"]) and not words["is_bad"]
    return words


def _parameter(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.operand("value")
    words, must = dict(_census(value.value)), found["constraint"]
    if must in _OF_MATRICES and not words["is_bad"]:
        words["holds"] = _of_matrix(value.value) if must == "PositiveDefinite()" else ""
    is_positive = must.startswith("GreaterThan(lower_bound=0")
    is_positive_of_all = "(GreaterThan(lower_bound=0" in must
    return {
        **words,
        "must": must,
        "is_unbounded": is_positive and not words["is_bad"],
        "is_logits": must == "Simplex()" and words["is_negative"],
        "may_be_logits": must.startswith("Interval(lower_bound=0.0") and not words["is_bad"],
        "is_positive": is_positive_of_all and not words["is_bad"],
        "is_matrix": must == "PositiveDefinite()",
        "scores": _scores(failure),
    }


def _scores(failure: Failure) -> str:
    """The first argument, as the program gave it to the distribution."""
    node = None if failure.user is None else failure.user.expression
    given = node.args[0] if isinstance(node, ast.Call) and node.args else None
    return "..." if given is None or failure.user is None else written(given, failure.user.file)


def _weights(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    operand = _first(failure)
    texts = (failure.origin(operand).text, "" if failure.user is None else failure.user.text)
    is_unknown = bounds_of(operand.value) is None
    return {
        **_census(operand.value),
        "is_unknown": is_unknown,
        "is_of_exp": any("exp(" in one for one in texts),
    }


def _first(failure: Failure) -> Operand:
    return failure.tensors[0] if failure.tensors else failure.operand("input")


def _of_matrix(value: object) -> str:
    """Return why matrices are not positive definite; empty where that is not known."""
    facts = _facts_of_matrix(value)
    if facts["is_skew"]:
        return ": it is not symmetric"
    return (
        f": its least eigenvalue is {facts['least']}" if facts["is_near"] or facts["is_far"] else ""
    )


def _matrix(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return _facts_of_matrix(_first(failure).value)


def _facts_of_matrix(value: object) -> Mapping[str, Any]:
    is_tensor = isinstance(value, Tensor) and bounds_of(value) is not None and value.dim() > 1
    if not is_tensor or not isinstance(value, Tensor) or value.shape[-1] != value.shape[-2]:
        words = dict.fromkeys(("is_skew", "is_bad", "is_near", "is_far"), False)
        return {**words, "is_unknown": True}
    value = value.detach().double().reshape(-1, *value.shape[-2:])[:_MOST_MATRICES]
    is_bad = not bool(value.isfinite().all())
    size = float(value.abs().max())
    is_skew = not is_bad and float((value - value.mT).abs().max()) > 1e-4 * size
    is_checked = not is_bad and not is_skew and value.shape[-1] <= 512
    least = float(torch.linalg.eigvalsh(value).min()) if is_checked else 0.0
    return {
        "is_unknown": False,
        "is_skew": is_skew,
        "is_bad": is_bad,
        "least": f"{least:.3g}",
        # Rounding makes eigenvalues that are 0 a little negative.
        "is_near": is_checked and least > -1e-4 * size,
        "is_far": is_checked and least <= -1e-4 * size,
    }


SITUATIONS: dict[str, Situation] = {
    "parameter of a distribution": SituationRow(
        "{parameter} of {kind}, of shape {size}, does not satisfy {must}{holds}.",
        ("is_bad", _FIRST_NAN),
        (
            "is_bad",
            "If the training went well before, make its steps smaller: a lower learning rate, or "
            "torch.nn.utils.clip_grad_norm_; if the data hold NaN, fill it or leave it out.",
        ),
        (
            "is_bad",
            "If it is a sqrt or log of what may be 0 or below, keep that above: F.softplus(raw) + "
            "1e-6, or a clamp(min=1e-6) before it.",
        ),
        (
            "is_unbounded",
            "Make it positive where it is computed: F.softplus(raw) + 1e-6, or raw.exp().",
        ),
        (
            "is_logits",
            "Negative numbers are no probabilities: if they are logits, {kind}(logits={scores}).",
        ),
        (
            "may_be_logits",
            "Probabilities are from 0 to 1: if they are logits, {kind}(logits={scores}).",
        ),
        (
            "is_positive",
            "Make it positive where it is computed: F.softplus(raw) + 1e-6, or raw.exp().",
        ),
        (
            "is_matrix",
            "If it is a covariance matrix up to rounding, make it symmetric and add a small "
            "multiple of the identity: (A + A.mT) / 2 + 1e-5 * torch.eye(A.shape[-1]).",
        ),
        (
            "is_matrix",
            "If a network computes it, have the network compute the factor: scale_tril=L, lower "
            "triangular, with a diagonal above 0.",
        ),
        facts=_parameter,
    ),
    "weights of a draw": SituationRow(
        "multinomial draws by weights that are finite and at least 0, and got {name}{holds}.",
        (
            "is_of_exp",
            "exp of a large number is Inf. Give the weights by softmax of what it was taken of, "
            "which subtracts the greatest first: logits.softmax(-1).",
        ),
        ("is_bad", _FIRST_NAN),
        (
            "is_bad",
            "If they come from a softmax, what it takes is Inf or NaN, as after a division by a "
            "temperature near 0 or in float16: divide in float32, by no less than 1e-2, or take "
            "the greatest: argmax.",
        ),
        ("is_negative", "If they are logits, turn them into weights: {name_it}.softmax(-1)."),
        (
            "is_unknown",
            "If they are logits, turn them into weights by softmax: logits.softmax(-1).",
        ),
        ("is_unknown", "If they hold NaN or Inf, find where the first comes from: tt.locate."),
        about="tensors",
        facts=_weights,
    ),
    "nothing to draw": SituationRow(
        "multinomial was given weights that are all 0 in a row, or fewer above 0 than it draws.",
        "Leave such rows out, or give them equal weights.",
        "Draw with replacement, or fewer: replacement=True, num_samples=...",
        about="tensors",
    ),
    "not positive definite": SituationRow(
        "The matrix has no Cholesky factor: it is not positive definite.",
        ("is_bad", _FIRST_NAN),
        ("is_skew", "It is not symmetric. Make it so: (A + A.mT) / 2, if that is what is meant."),
        (
            "is_near",
            "Its least eigenvalue is {least}, 0 but for rounding. Add a small multiple of the "
            "identity, as for covariances: A + 1e-5 * torch.eye(A.shape[-1]).",
        ),
        (
            "is_far",
            "Its least eigenvalue is {least}: it is indefinite. Check how it is made, or solve "
            "with torch.linalg.solve, which needs no such matrix.",
        ),
        (
            "is_unknown",
            "If it is so but for rounding, as of covariances, add a small multiple of the "
            "identity: A + 1e-5 * torch.eye(A.shape[-1]), or compute it in float64.",
        ),
        (
            "is_unknown",
            "If torch.linalg.eigvalsh(A).min() is far below 0, check how it is made: symmetric, "
            "and without NaN.",
        ),
        about="tensors",
        facts=_matrix,
    ),
}
