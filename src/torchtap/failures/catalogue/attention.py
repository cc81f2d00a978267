"""Attention: masks and heads."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.failure import Failure
from torchtap.failures.operands import bounds_of
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow


def _numbers(text: str) -> list[int]:
    return [int(one) for one in re.findall(r"\d+", text)]


def _mask(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given, wanted = _numbers(found["given"]), _numbers(found["wanted"])
    query, key = failure.operand("query").value, failure.operand("key").value
    # Inside of PyTorch's function the batch stands in dimension 1.
    batch = query.shape[1] if isinstance(query, Tensor) and query.dim() == 3 else None
    source = key.shape[0] if isinstance(key, Tensor) and key.dim() == 3 else None
    is_first = getattr(failure.module, _FIRST, True)
    square = len(given) == 2 and given[0] == given[1]
    heads = wanted[0] // batch if batch and len(wanted) == 3 else 0
    return {
        "heads": heads,
        "is_per_sample": bool(heads) and given == [batch, *wanted[1:]],
        "is_of_padding": batch is not None and given == [batch, source],
        "padding": _as_padding(failure),
        "is_batch_second": square and not is_first and given[0] == batch != wanted[-1],
        "is_longer": square and len(wanted) == 2 and given[0] > max(wanted),
        "cut": f"[:{wanted[0]}, :{wanted[-1]}]",
    }


def _as_padding(failure: Failure) -> str:
    """The argument for padding with a mask of it, as far as names and values tell."""
    mask = failure.operand("attn_mask")
    name, keyword, value = failure.name_of(mask), "key_padding_mask", mask.value
    node = None if failure.user is None else failure.user.expression
    if isinstance(node, ast.Call):
        for one in node.keywords:
            if one.arg is not None and failure.user is not None:
                text = written(one.value, failure.user.file)
                if one.arg.endswith("mask") and "padding" not in one.arg:
                    keyword = one.arg.replace("attn_mask", "mask").replace("mask", keyword)
                    name, value = text, failure.user.value_of(one.value)
                    match one.value:
                        case ast.Call(func=ast.Attribute(value=base, attr="bool"), args=[]):
                            value = failure.user.value_of(base)
    return f"{keyword}={_true_where_padded(name, value)}"


def _true_where_padded(name: str, value: Any) -> str:
    """A mask of padding as PyTorch takes it: a sequence begins with what is kept."""
    is_flag = isinstance(value, Tensor) and value.dim() == 2 and not value.is_nested
    plain = value.detach().float() if is_flag else None
    if plain is None or bounds_of(plain) is None:
        return name
    starts_kept = bool((plain[:, 0] > 0).all()) and bool((plain >= 0).all())
    return f"({grouped(name)} == 0)" if starts_kept else name


def _padding(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value, key = failure.operand("key_padding_mask").value, failure.operand("key").value
    if not isinstance(value, Tensor) or not isinstance(key, Tensor) or key.dim() != 3:
        return dict.fromkeys(("needed", "is_turned", "is_batch_second"), "")
    needed = [key.shape[1], key.shape[0]]
    is_turned, is_first = list(value.shape) == needed[::-1], getattr(failure.module, _FIRST, True)
    return {
        "needed": f" {needed}",
        "is_turned": is_turned,
        "is_batch_second": is_turned and not is_first,
    }


def _heads(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    width, heads = failure.operand("embed_dim").value, failure.operand("num_heads").value
    if not isinstance(width, int) or not isinstance(heads, int) or heads < 1:
        return {"given": "embed_dim and num_heads", "is_known": False}
    divisors = [one for one in range(1, width + 1) if width % one == 0]
    return {
        "given": f"a width of {width} and {heads} heads",
        "is_known": True,
        "divisors": ", ".join(map(str, divisors[-12:])),
        "wider": width + heads - width % heads,
    }


_FIRST = "batch_first"
_BATCH_FIRST = (
    "If the batch stands first in the input, say so where the layer is made: batch_first=True; "
    "without it the first dimension is the time."
)
SITUATIONS: dict[str, Situation] = {
    "attention mask": SituationRow(
        "{module} takes a mask of shape ({wanted}) for this query and key, and attn_mask is "
        "{given}.",
        (
            "is_per_sample",
            "Repeat the mask of each sample for its {heads} heads, which stand side by side, with "
            ".repeat_interleave({heads}, 0).",
        ),
        ("is_batch_second", _BATCH_FIRST),
        ("is_longer", "If it was made for the longest sequence, cut it to this one: mask{cut}."),
        (
            "is_of_padding",
            "If it marks padding, one row for each sample, hand it over as such, True where a key "
            "is padding: {padding}.",
        ),
        "Make it from the lengths of query and key: [target length, source length] for all "
        "samples, or [batch * heads, target length, source length].",
        facts=_mask,
    ),
    "padding mask": SituationRow(
        "{module} takes a key_padding_mask{needed}, which is [batch, source length]; dimension "
        "{dim} of this one is {given}.",
        ("is_batch_second", _BATCH_FIRST),
        ("is_turned", "If the mask stands the other way, [source length, batch], turn it: .T."),
        "Make it from the batch and the length of the keys, True where a key is padding.",
        facts=_padding,
    ),
    "attention heads": SituationRow(
        "Attention was made with {given}, and each head takes an equal share of the width.",
        ("is_known", "Choose a number of heads that divides it: {divisors}."),
        ("is_known", "Or choose a width that the heads divide, such as {wider}."),
        facts=_heads,
    ),
}
