"""Layers that refuse their sizes: convolutions, pools, norms, recurrences and attentions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.failure import Failure
from torchtap.failures.situation_row import Situation, SituationRow


def _number(failure: Failure, name: str) -> int:
    """The number that a function of PyTorch has under a name; 0 where it has none."""
    value = failure.operand(name).value
    value = value[0] if isinstance(value, tuple) and value else value
    return value if type(value) is int else 0


def _dims(failure: Failure) -> int:
    value = failure.argument().value
    return value.dim() if isinstance(value, Tensor) else 0


def _groups(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    one, other = _number(failure, "in_channels"), _number(failure, "out_channels")
    both = math.gcd(one, other)
    fitting = [number for number in range(1, both + 1) if both % number == 0]
    groups, channels = _number(failure, "groups"), one if found["what"] == "in_channels" else other
    is_near = found["what"] == "out_channels" and channels > groups > 1
    low = channels // groups * groups if is_near else 0
    return {
        "channels": channels,
        "groups": groups,
        "fitting": ", ".join(map(str, fitting[-8:])),
        "near": f"{low} or {low + groups}" if is_near else "",
        "is_far": not is_near,
    }


def _pool(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    low, high = (
        int(found[one] or found[other]) for one, other in (("low", "few"), ("high", "many"))
    )
    dims, kind = _dims(failure), type(failure.module).__name__
    is_of_pool = kind[-2:-1].isdigit() and kind[-1:] == "d"
    fitting = f"nn.{kind[:-2]}{dims - 2}d" if is_of_pool and dims in (3, 4, 5) else ""
    return {
        "low": low,
        "high": high,
        "dims": dims or "another number of",
        "fitting": fitting if dims > high else "",
        "is_picture": dims == low - 1,
    }


def _shuffled(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given = int(found["given"] or found["channels"])
    wanted = int(found["wanted"] or found["groups"])
    return {"channels": given, "factor": wanted, "more": -(-given // wanted) * wanted}


def _unpooled(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {"kind": "the size before the pool"}


def _recurrence(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_cell = type(failure.module).__name__.endswith("Cell")
    value = failure.argument().value
    shape = list(value.shape) if isinstance(value, Tensor) else []
    size = getattr(failure.module, "input_size", 0)
    is_long = not is_cell and len(shape) > 3
    ones = [at for at in (1, 2, 0) if len(shape) == 4 and shape[at] == 1 and shape[-1] == size]
    return {
        "is_cell": is_cell and int(found["given"]) == 3,
        "whole": type(failure.module).__name__.removesuffix("Cell"),
        "is_flat": is_long and math.prod(shape[2:]) == size and not ones,
        "single": str(ones[0]) if ones else "",
        "is_map": is_long and len(shape) == 4 and shape[1] * shape[2] == size != shape[3],
        "is_joined": len(shape) == 4 and shape[-1] == size and not ones,
    }


def _lengths(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.operand("input").value
    shape = value.shape if isinstance(value, Tensor) else ()
    is_first = failure.operand("batch_first").value
    fits = len(shape) > 1 and int(found["given"]) == shape[1 if is_first is True else 0]
    return {
        "is_batch": fits and is_first is False,
        "is_time": fits and is_first is True,
        "is_other": not fits,
    }


def _cell(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    kind, module = type(failure.module).__name__, failure.module
    hidden = getattr(module, "hidden_size", "...")
    is_input = found["what"] == "input"
    made = f"nn.{kind}({found['given']}, {hidden})" if is_input else ""
    return {"made": made, "is_hidden": not is_input}


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
    }


def _initialised(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.operand("tensor").value
    state = failure.names.state(value)
    return {
        "it": "a tensor" if state is None else state.name,
        "dims": value.dim() if isinstance(value, Tensor) else "too few",
    }


def _rectified(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.argument().value
    shape = value.shape if isinstance(value, Tensor) else ()
    return {"is_last": len(shape) > 2 and shape[-1] == int(found["wanted"])}


def _tokens(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_whole = found["given"].startswith(("int", "uint"))
    return {"is_whole": is_whole, "is_float": not is_whole}


SITUATIONS: dict[str, Situation] = {
    "channels of groups": SituationRow(
        "A convolution with groups={groups} shares its channels out among them, and {what}, "
        "{channels}, is no multiple of that.",
        (
            "near",
            "If {groups} groups are wanted, make {what} a multiple of {groups}, where it is "
            "computed: {near}.",
        ),
        "Choose a number of groups that divides in_channels and out_channels: {fitting}.",
        ("is_far", "Or make in_channels and out_channels multiples of {groups}."),
        facts=_groups,
    ),
    "padding of a stride": SituationRow(
        "padding='same' keeps the size, and a stride of more than 1 makes it smaller.",
        "Give the padding as a number, half of the kernel: padding={half}, for a size divided by "
        "the stride and rounded up.",
        "If the size is to stay, leave the stride out.",
        facts=lambda failure, found: {"half": _number(failure, "kernel_size_") // 2},
    ),
    "padding of a pool": SituationRow(
        "A pool of kernel {kernel} may be padded by half of that at most, and was given {pad}: a "
        "window would lie in the padding alone.",
        "Give a padding of at most {most}, or a larger kernel.",
        facts=lambda failure, found: {"most": int(found["kernel"]) // 2},
        about="argument",
    ),
    "dimensions of a pool": SituationRow(
        "The pool takes {low} dimensions, [channels, ...], or {high} with a batch, and its input "
        "has {dims}.",
        ("fitting", "Use the pool of that many dimensions: {fitting}."),
        ("is_picture", "Give it the channel, and take it out behind: pool({name_it}[None])[0]."),
        about="argument",
        facts=_pool,
    ),
    "padding of an output": SituationRow(
        "output_padding chooses among the sizes that a stride (or dilation) leaves open, and is "
        "smaller than it; with a stride of 1 there is one size.",
        "Give an output_padding below the stride: none (0) for a stride of 1, 1 at most for 2.",
    ),
    "size of an unpool": SituationRow(
        "No pool of this kernel and stride makes the input of the unpool from a size of {given}: "
        "each is from {low} to {high}.",
        "Give the size that the pool had as its input: output_size=x.size(), kept before the pool.",
    ),
    "blocks of a fold": SituationRow(
        "A fold to {out} puts {wanted} blocks together, and its input has {given} in dimension 2.",
        "Give the output_size, kernel, stride and padding that unfold was given.",
        "Give an input of [batch, channels * kernel elements, {wanted}].",
        about="argument",
    ),
    "no block": SituationRow(
        "A block of {kernel} does not fit into a picture of {given}.",
        "Give a larger picture, a smaller kernel, or padding.",
        about="argument",
    ),
    "channels of a shuffle": SituationRow(
        "{channels} channels cannot be shared out: {module} needs a multiple of {factor}.",
        "Make the layer before it return {more} channels, or another multiple of {factor}.",
        about="argument",
        facts=_shuffled,
    ),
    "size of a shuffle": SituationRow(
        "{module} makes blocks of {wanted}, and the {side} of its input is {given}.",
        "Give a {side} that is a multiple of {wanted}: pad it with F.pad, or cut it.",
        about="argument",
    ),
    "one place in a picture": SituationRow(
        "{module} subtracts the mean of each channel of each sample, and its input {given} has one "
        "value there: only zeros would be left.",
        "Leave it out where the picture has become one point, behind the last pool.",
        "Give a larger input, or fewer pools and strides before it.",
        "Normalise over the channels of a sample: nn.GroupNorm(1, channels).",
        about="argument",
    ),
    "channels of a group norm": SituationRow(
        "{module} has {groups} groups, and the channels of its input {given}, dimension 1, cannot "
        "be shared out among them.",
        "Give it the channels that it was made for, in dimension 1, behind the batch.",
        about="argument",
    ),
    "one value in a group": SituationRow(
        "{module} has one value in each group of its input {given}: nothing is left of it without "
        "its mean.",
        "Make it with fewer groups, nn.GroupNorm(1, channels): each has more channels then.",
        about="argument",
    ),
    "row of the padding": SituationRow(
        "padding_idx={row} is a row of the embedding, and it has the rows 0 to {last}.",
        "Give the padding a row of its own: nn.Embedding({more}, ..., padding_idx={row}).",
        "Or give the number of the row that pads: 0 in most tokenizers.",
        facts=lambda failure, found: {
            "row": _number(failure, "padding_idx"),
            "last": _number(failure, "num_embeddings") - 1,
            "more": _number(failure, "padding_idx") + 1,
        },
    ),
    "bags without beginnings": SituationRow(
        "{module} was given one row of numbers and no offsets, which say where each bag begins.",
        "Give a row for each bag, of one length: an input of [bags, numbers], {name_it}[None] for "
        "one bag.",
        "Or say where the bags begin: offsets=torch.tensor([0, ...]).",
        about="argument",
    ),
    "bags with two beginnings": SituationRow(
        "Each row of a two-dimensional input is a bag, and offsets, which say where bags begin, "
        "were given besides.",
        "Leave the offsets out.",
        about="argument",
    ),
    "dimensions of a recurrence": SituationRow(
        "{module} takes {low} or {high} dimensions, and its input has {given}.",
        ("is_cell", "A cell takes one step: call it in a loop, for step in {name}: ..."),
        ("is_cell", "Or use nn.{whole}, which goes through the whole sequence."),
        (
            "is_map",
            "If the last dimension is the time, as in a map over a line of text, put it second: "
            "{name_it}.permute(0, 3, 1, 2).flatten(2), with batch_first=True.",
        ),
        ("is_flat", "Make one vector of what stands behind the time: {name_it}.flatten(2)."),
        ("single", "Take the dimension of one away: {name_it}.squeeze({single})."),
        (
            "is_joined",
            "If the first two say which sequence it is, join them: {name_it}.flatten(0, 1), with "
            "batch_first=True.",
        ),
        "Otherwise bring it to [time, batch, features], or [batch, time, features] with "
        "batch_first=True.",
        about="argument",
        facts=_recurrence,
    ),
    "features of a cell": SituationRow(
        "{module} has {size}={wanted}, and its {what} has {given} in the last dimension.",
        ("made", "Make it take {given}: {variable} = {made}."),
        ("is_hidden", "Give a state of [batch, {wanted}], or none: it then begins with zeros."),
        about="argument",
        facts=_cell,
    ),
    "batch of a cell": SituationRow(
        "The input has a batch of {given}, and the state one of {wanted}.",
        "Make the state for this batch: torch.zeros(len(x), hidden_size), anew for each batch.",
        about="tensors",
    ),
    "dtypes of a recurrence": SituationRow(
        "{module} has weights of {wanted}, and its input holds {given}.",
        ("is_float", "Convert the input: {name_it}.to(torch.{wanted})."),
        (
            "is_whole",
            "If the numbers count or measure, convert them: {name_it}.to(torch.{wanted}).",
        ),
        (
            "is_whole",
            "If they are numbers of tokens or classes, look their vectors up first: "
            "nn.Embedding(num, {variable}.input_size).",
        ),
        about="argument",
        facts=_tokens,
    ),
    "number of lengths": SituationRow(
        "There are {given} lengths for a batch of {wanted}.",
        ("is_batch", "The batch stands first: give batch_first=True."),
        ("is_time", "The time stands first: leave batch_first=True out."),
        ("is_other", "Give one length for each sample."),
        about="argument",
        facts=_lengths,
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
        "src is {source} and tgt {target}: their batches, dimension 1 of [time, batch, features], "
        "are not equal.",
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
    "half that is odd": SituationRow(
        "GLU multiplies one half of dimension {dim} by the other, and it has {given} elements.",
        "Make the layer before it return an even number: twice what is to come out.",
        "Say which dimension is halved: dim=1 for that of the channels.",
        about="argument",
    ),
    "channels of a prelu": SituationRow(
        "{module} has {wanted} slopes, one for each channel, and its input has {given} channels in "
        "dimension 1.",
        ("is_last", "Put the channels behind the batch: {name_it}.movedim(-1, 1)."),
        "Make it with a slope for each: nn.PReLU({given}), or one for all: nn.PReLU().",
        about="argument",
        facts=_rectified,
    ),
    "fans of a vector": SituationRow(
        "This initialisation is for matrices, and {it} has {dims} dimensions, as a bias or the "
        "weight of a norm.",
        "Leave such out: if p.dim() > 1, and keep what the layer began with, or nn.init.zeros_ for "
        "a bias.",
        facts=_initialised,
    ),
}
