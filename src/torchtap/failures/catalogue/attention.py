"""Attention: queries, masks and heads that do not fit."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.failures.failure import Failure
from torchtap.failures.operands import bounds_of
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow
from torchtap.failures.traceback_frame import TracebackFrame

_FIRST = "batch_first"
_BATCH_FIRST = (
    "If the batch stands first in the input, say so where the layer is made: batch_first=True; "
    "without it the first dimension is the time."
)


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
        "is_time_first": square and is_first and given[0] == batch != wanted[-1],
        "is_longer": square and given[0] != batch and len(wanted) == 2 and given[0] > max(wanted),
        "cut": f"[:{wanted[0]}, :{wanted[-1]}]",
    }


def _as_padding(failure: Failure) -> str:
    """The argument for padding with a mask of it, as far as names and values tell."""
    mask = failure.operand("attn_mask")
    name, keyword, value = failure.name_of(mask), "key_padding_mask", mask.value
    frame = failure.user
    for argument, given, others in _masks_given(frame) if frame is not None else ():
        if argument.endswith("mask") and "padding" not in argument and frame is not None:
            prefix = argument.removesuffix("mask").removesuffix("attn_")
            fitting = [one for one in others if one.endswith(f"{prefix}{keyword}")]
            keyword = fitting[0] if fitting else f"{prefix}{keyword}"
            name, value = written(given, frame.file), frame.value_of(given)
            match given:
                case ast.Call(func=ast.Attribute(value=base, attr="bool"), args=[]):
                    value = frame.value_of(base)
            break
    return f"{keyword}={_true_where_padded(name, value)}"


def _masks_given(frame: TracebackFrame) -> Iterator[tuple[str, ast.expr, list[str]]]:
    """Yield the arguments of a call by their names, beside the names of all that it takes."""
    node = frame.expression
    module = frame.value_of(node.func) if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call):
        return
    names: list[str] = []
    if isinstance(module, nn.Module) and type(module).__module__.startswith("torch."):
        names = list(inspect.signature(type(module).forward).parameters)[1:]
    for name, one in zip(names, node.args, strict=False):
        yield name, one, names
    for keyword in node.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value, names


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


def _attended(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The dimensions that the query, or what goes with it, lacks or has too many."""
    what, kind = found["what"], found["kind"]
    name = what.partition("`")[0]
    is_mask = "mask" in name
    given = int(found["given"])
    return {
        "what": what.replace("`", ""),
        "is_lacking": kind == "batched" and not is_mask and given == 2,
        "is_squeezed": name == "key_padding_mask" and given == 4,
        "is_unbatched": kind == "unbatched" and given == 3,
        "wanted_text": found["wanted"] + (f" or {found['other']}" if found["other"] else ""),
    }


def _queries(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.operand("query").value
    shape = list(value.shape) if isinstance(value, Tensor) and value.dim() == 4 else [0] * 4
    width = getattr(failure.module, "embed_dim", None)
    is_last = shape[-1] == width or shape == [0] * 4
    first = failure.module is not None and getattr(failure.module, "batch_first", False)
    return {
        "is_first": is_last and bool(first),
        "is_second": shape[1] == width and not is_last,
        "turned": "flatten(2).mT" if first else "flatten(2).permute(2, 0, 1)",
        "is_other": not first and shape[1] != width,
    }


def _types(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    one, key, value = (found[name].removeprefix("c10::") for name in ("query", "key", "value"))
    return {"one": one, "key": key, "other": value}


def _source(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    source, target = (failure.operand(name).value for name in ("src", "tgt"))
    shapes = [list(one.shape) if isinstance(one, Tensor) else "?" for one in (source, target)]
    is_first = (
        isinstance(source, Tensor)
        and isinstance(target, Tensor)
        and source.dim() == target.dim() == 3
        and source.shape[0] == target.shape[0]
        and not getattr(failure.module, "batch_first", True)
    )
    return {
        "source": shapes[0],
        "target": shapes[1],
        "is_first": is_first,
        "width": getattr(failure.module, "d_model", "d_model"),
        "batches": "dimension 0 of [batch, time, features]"
        if getattr(failure.module, "batch_first", False)
        else "dimension 1 of [time, batch, features]",
    }


def _query(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value, given, wanted = failure.operand("query").value, int(found["given"]), int(found["wanted"])
    times = given // wanted if wanted and given % wanted == 0 else 0
    shape = _as_given(failure, value)
    name = grouped(failure.name_of(failure.operand("query")))
    return {
        "is_second": len(shape) == 3 and shape[1] == wanted != shape[2],
        "turned": f"{name}.mT",
        "is_whole": isinstance(value, Tensor) and not value.is_floating_point(),
        "times": times if times > 1 else 0,
    }


def _as_given(failure: Failure, query: Any) -> list[int]:
    """Return the shape of a query as the program gave it: inside, its time stands first."""
    shape = list(query.shape) if isinstance(query, Tensor) else []
    is_turned = len(shape) == 3 and getattr(failure.module, "batch_first", False)
    return [shape[1], shape[0], shape[2]] if is_turned else shape


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
        (
            "is_time_first",
            "If the time stands first in the input, leave batch_first=True out where the layer is "
            "made, or do not transpose the input: with it the first dimension is the batch.",
        ),
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
    "keys and values": SituationRow(
        "Each key has its value, and they have the shapes {key} and {value}.",
        "Make keys and values of one sequence: attention(query, memory, memory).",
        about="tensors",
    ),
    "dimensions of an attention": SituationRow(
        "The query is {kind}, so that {what} has {wanted_text}; it has {given}-D.",
        (
            "is_lacking",
            "Give the batch to all of them: key.unsqueeze(0) with batch_first=True, unsqueeze(1) "
            "without, repeated by expand to that of the query.",
        ),
        (
            "is_squeezed",
            "Take out the dimensions of one, which were made for the scores: "
            "mask.squeeze(1).squeeze(1), of [batch, keys]; True hides.",
        ),
        ("is_unbatched", "Give the query its batch as well: query.unsqueeze(...)."),
        facts=_attended,
        about="tensors",
    ),
    "query of an attention": SituationRow(
        "{module} takes [time, batch, features], or [batch, time, features] with "
        "batch_first=True, and its query has {given} dimensions.",
        (
            "is_second",
            "If it is a map of {variable}.embed_dim channels, make its places the sequence: "
            "{name_it}.{turned}.",
        ),
        (
            "is_first",
            "If all places attend to each other, join them: {name_it}.flatten(1, 2); if each row "
            "does by itself: {name_it}.flatten(0, 1).",
        ),
        "If a dimension is that of the heads, leave it out: the module makes them of the features "
        "itself.",
        ("is_other", "If the places are those of a picture, join them: {name_it}.flatten(...)."),
        about="argument",
        facts=_queries,
    ),
    "numbers as a mask": SituationRow(
        "{mask} is a mask of booleans, True where attention is not allowed, or of floats that are "
        "added to the scores, and holds integers.",
        "If 1 marks what is hidden, make booleans of it: {mask}.bool().",
        "If 1 marks what is seen, as a tokenizer says it, turn it round: {mask} == 0.",
        about="tensors",
    ),
    "hint without a mask": SituationRow(
        "is_causal=True says that the mask is causal, and no mask was given.",
        "Give it: attn_mask=nn.Transformer.generate_square_subsequent_mask(length), beside "
        "is_causal=True.",
    ),
    "dtypes of an attention": SituationRow(
        "query, key and value have one dtype, and hold {one}, {key} and {other}.",
        "Convert them where they are made: key = key.to(query.dtype), value = "
        "value.to(query.dtype).",
        about="tensors",
        facts=_types,
    ),
    "batches of a transformer": SituationRow(
        "src is {source} and tgt {target}: their batches, {batches}, are not equal.",
        (
            "is_first",
            "If the batch stands first in both, make it so: nn.Transformer(..., batch_first=True).",
        ),
        "Give both one batch.",
        facts=_source,
    ),
    "width of a transformer": SituationRow(
        "The transformer has d_model={width}, the size of the last dimension of src and tgt, which "
        "are {source} and {target}.",
        "Bring both to {width} features first: by an nn.Embedding of numbers, or an nn.Linear.",
        facts=_source,
    ),
    "embedding dimension": SituationRow(
        "{module} takes vectors of {wanted}, and the query has {given} in its last dimension.",
        (
            "is_whole",
            "If it holds the numbers of tokens, look their vectors up first: nn.Embedding(num, "
            "{wanted}).",
        ),
        (
            "times",
            "If it holds {times} vectors of {wanted}, one behind the other, keep them apart: "
            "x.unflatten(-1, ({times}, {wanted})), [batch, {times}, {wanted}] with "
            "batch_first=True.",
        ),
        ("is_second", "If dimension 1 holds the features, put them last: {turned}."),
        "If a width of {given} is right, make it take that: embed_dim={given}, which num_heads "
        "must divide.",
        "If {wanted} is, project the input first: nn.Linear({given}, {wanted}).",
        about="query",
        facts=_query,
    ),
}
